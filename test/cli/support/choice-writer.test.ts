import { expect, test } from "bun:test";
import { ChoiceWriter } from "../../../gateway/cli/commands/query.ts";
import { fc } from "../../support/fast-check.ts";

const written = (events: (writer: ChoiceWriter) => void): string => {
  let text = "";
  events(
    new ChoiceWriter((part) => {
      text += part;
    }),
  );
  return text;
};

test("one choice is its text alone, written at once", () => {
  const parts: string[] = [];
  const writer = new ChoiceWriter((part) => parts.push(part));
  writer.add(0, "a");
  writer.add(0, "");
  writer.add(0, "b");
  expect(parts).toEqual(["a", "b"]);
});

test("a choice whose turn has come is written as it goes on", () => {
  const text = written((writer) => {
    writer.add(1, "B");
    writer.add(0, "A");
    writer.end(0);
    writer.add(1, "b");
    writer.add(2, "C");
    writer.end(1);
    writer.end(2);
  });
  expect(text).toBe("A\n\n--- 2 ---\nBb\n\n--- 3 ---\nC");
});

test("choices without text are passed over", () => {
  const text = written((writer) => {
    for (const index of [2, 0, 1]) writer.end(index);
    writer.add(3, "D");
  });
  expect(text).toBe("\n\n--- 4 ---\nD");
});

test("however choices interleave, all are there in order", () => {
  const choices = fc.array(fc.array(fc.stringMatching(/^[a-z]{1,3}$/), { maxLength: 4 }), {
    minLength: 1,
    maxLength: 4,
  });
  fc.assert(
    fc.property(choices, fc.infiniteStream(fc.nat()), (texts, random) => {
      const left = texts.map((parts) => [...parts, undefined]);
      const text = written((writer) => {
        for (;;) {
          const open = left.flatMap((parts, index) => (parts.length > 0 ? [index] : []));
          const index = open[(random.next().value ?? 0) % Math.max(1, open.length)];
          if (index === undefined) return;
          const part = left[index]?.shift();
          if (part === undefined) writer.end(index);
          else writer.add(index, part);
        }
      });
      const expected = texts.flatMap((parts, index) => {
        const whole = parts.join("");
        return whole === "" ? [] : [index === 0 ? whole : `\n\n--- ${index + 1} ---\n${whole}`];
      });
      expect(text).toBe(expected.join(""));
    }),
    { numRuns: 200 },
  );
});
