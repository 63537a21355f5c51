"""Chains: a prompt gives some values and a plan of sums, the answer works the plan off line by line.

A line of the plan names one or two earlier lines. The answer copies it, recalls their values from where it said them,
adds them digit by digit, and says the line's own value:

    - river = garden + bell; garden is 47, bell is 35; 7+5=12, 4+3+1=08; river is 82

Nothing in the plan has a value, so each of them is found in the answer's own lines, at any distance: half of the first
parents are among the newest NEAR lines, all others are drawn from everything before. About a quarter of the lines have a part in the last one's
value, which is what the prompt asks for. `../chains.ts` makes the same chains from the same seeds.
"""
import os
from typing import NamedTuple

NEAR = 8  # of how many newest lines a near parent is one
GIVEN = (4, 8)  # how many values the prompt gives
NAMES = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "names.txt")).read().split()
MASK = 0xFFFFFFFF


class Random:
    """mulberry32, as in test/native/random.ts."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x6D2B79F5) & MASK
        t = self.state
        t = ((t ^ (t >> 15)) * (t | 1)) & MASK
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & MASK)) & MASK
        return (t ^ (t >> 14)) / 4294967296

    def integer(self, low, high):
        return low + int(self.next() * (high - low + 1))


class Chain(NamedTuple):
    prompt: str
    answer: str


def shuffled(random, names, count):
    """The first `count` of the names in a random order."""
    names = list(names)
    for i in range(count):
        j = random.integer(i, len(names) - 1)
        names[i], names[j] = names[j], names[i]
    return names[:count]


def worked(name, left, right, values):
    """A line of the answer; enters its value."""
    a, b = values[left], values[right]
    ones = a % 10 + b % 10
    tens = a // 10 + b // 10 + ones // 10
    values[name] = (a + b) % 100
    return (f"- {name} = {left} + {right}; {left} is {a:02d}, {right} is {b:02d}; {a % 10}+{b % 10}={ones:02d}, "
            f"{a // 10}+{b // 10}+{ones // 10}={tens:02d}; {name} is {values[name]:02d}")


def chain(seed, least, most):
    """A chain of `least` to `most` lines."""
    random = Random(seed)
    count = random.integer(least, most)
    given = random.integer(*GIVEN)
    names = shuffled(random, NAMES, given + count)
    values = {name: random.integer(0, 99) for name in names[:given]}
    prompt = ["Given:"] + [f"- {name} is {value:02d}" for name, value in values.items()] + ["Derive:"]
    answer = []
    for at in range(given, given + count):
        near = random.next() < 0.5
        left = names[random.integer(max(0, at - NEAR), at - 1) if near else random.integer(0, at - 1)]
        right = names[random.integer(0, at - 1)]
        prompt.append(f"- {names[at]} = {left} + {right}")
        answer.append(worked(names[at], left, right, values))
    prompt.append(f"What is {names[-1]}?")
    answer.append(f"Answer: {values[names[-1]]:02d}")
    return Chain("\n".join(prompt), "\n".join(answer))
