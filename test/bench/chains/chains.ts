/**
 * Chains of thought that look back at their own lines: a prompt gives some values and a plan of sums, and the answer,
 * of some thousand tokens, works the plan off line by line. `recipe/chains.py` says more, and makes the same chains to
 * train on.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Random } from "../../native/random.ts";

export interface Chain {
  readonly prompt: string;
  /** The one right answer, all of it: a line for each of the plan's, and one with the last value. */
  readonly answer: string;
}

export interface Bounds {
  readonly least: number;
  readonly most: number;
}

/** Lines of a chain whose answer has 4,010 to 7,970 tokens. */
export const longChain: Bounds = { least: 91, most: 181 };
/** Of how many newest lines a near parent is one. */
const near = 8;
/** How many values the prompt gives. */
const givenValues: Bounds = { least: 4, most: 8 };

/** What lines are called: words that are one token each for the demo model's tokenizer, which the chains model has. */
export function readNames(): readonly string[] {
  return readFileSync(join(import.meta.dir, "names.txt"), "utf8")
    .trim()
    .split("\n");
}

/** `count` of the names in a random order. */
function shuffled(random: Random, names: readonly string[], count: number): string[] {
  const left = [...names];
  return Array.from({ length: count }, (_, at) => {
    const other = random.integer(at, left.length - 1);
    const [name, moved] = [left[other], left[at]];
    if (name === undefined || moved === undefined) throw new RangeError(`${count} of ${names.length} names`);
    left[other] = moved;
    return name;
  });
}

const twoDigits = (value: number): string => String(value).padStart(2, "0");

/** A line of the answer; enters its value. */
function worked(name: string, left: string, right: string, values: Map<string, number>): string {
  const [a, b] = [values.get(left), values.get(right)];
  if (a === undefined || b === undefined) throw new RangeError(`${name} has a parent without a value`);
  const [aTens, bTens] = [Math.floor(a / 10), Math.floor(b / 10)];
  const ones = (a % 10) + (b % 10);
  const carry = Math.floor(ones / 10);
  const value = (a + b) % 100;
  values.set(name, value);
  const recalled = `${left} is ${twoDigits(a)}, ${right} is ${twoDigits(b)}`;
  const added = `${a % 10}+${b % 10}=${twoDigits(ones)}, ${aTens}+${bTens}+${carry}=${twoDigits(aTens + bTens + carry)}`;
  return `- ${name} = ${left} + ${right}; ${recalled}; ${added}; ${name} is ${twoDigits(value)}`;
}

/** @param seed below 2^31: the model was trained on others. @throws RangeError when there are too few names. */
export function makeChain(seed: number, { least, most }: Bounds, allNames: readonly string[]): Chain {
  const random = new Random(seed);
  const lines = random.integer(least, most);
  const given = random.integer(givenValues.least, givenValues.most);
  const names = shuffled(random, allNames, given + lines);
  const values = new Map(names.slice(0, given).map((name) => [name, random.integer(0, 99)]));
  const givens = [...values].map(([name, value]) => `- ${name} is ${twoDigits(value)}`);
  const [plan, answer]: [string[], string[]] = [[], []];
  for (const [at, name] of names.entries()) {
    if (at < given) continue;
    const isNear = random.next() < 0.5;
    const left = names[random.integer(isNear ? Math.max(0, at - near) : 0, at - 1)] ?? "";
    const right = names[random.integer(0, at - 1)] ?? "";
    plan.push(`- ${name} = ${left} + ${right}`);
    answer.push(worked(name, left, right, values));
  }
  const last = names.at(-1) ?? "";
  return {
    prompt: ["Given:", ...givens, "Derive:", ...plan, `What is ${last}?`].join("\n"),
    answer: [...answer, `Answer: ${twoDigits(values.get(last) ?? 0)}`].join("\n"),
  };
}
