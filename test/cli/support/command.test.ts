import { describe, expect, test } from "bun:test";
import { type Command, helpText, parseInput, UsageError } from "../../../gateway/cli/support/command.ts";

const command: Command = {
  name: "fetch",
  summary: "Fetches.",
  usage: "NAME",
  flags: {
    count: { type: "string", short: "c", value: "N", description: "How many." },
    tag: { type: "string", multiple: true, description: "A tag." },
    force: { type: "boolean", description: "Anyway." },
  },
  run: async () => 0,
};

describe("parseInput", () => {
  test("reads flags, repeated flags and positionals", () => {
    const input = parseInput(command, ["a", "-c", "3", "--tag", "x", "--tag", "y", "--force", "b"]);
    expect(input.positionals).toEqual(["a", "b"]);
    expect(input.text("count")).toBe("3");
    expect(input.texts("tag")).toEqual(["x", "y"]);
    expect(input.isSet("force")).toBe(true);
    expect(input.help).toBe(false);
    expect(parseInput(command, ["-h"]).help).toBe(true);
  });

  test("what was not given is undefined, empty or false", () => {
    const input = parseInput(command, []);
    expect(input.text("count")).toBeUndefined();
    expect(input.texts("tag")).toEqual([]);
    expect(input.isSet("force")).toBe(false);
    expect(input.integer("count", { min: 1, max: 9 })).toBeUndefined();
  });

  test.each([["--bogus"], ["--count"], ["--force=yes"]])("refuses %s", (flag) => {
    expect(() => parseInput(command, [flag])).toThrow(UsageError);
  });

  test.each(["0", "10", "2.5", "x", ""])("refuses --count=%s out of 1 to 9", (value) => {
    const input = parseInput(command, [`--count=${value}`]);
    expect(() => input.integer("count", { min: 1, max: 9 })).toThrow(/--count must be a whole number from 1 to 9/);
  });
});

test("help names every flag with its value", () => {
  const text = helpText(command);
  expect(text).toContain("Usage: spangate fetch NAME");
  for (const part of ["-c, --count N", "--tag", "--force", "-h, --help", "How many."]) expect(text).toContain(part);
});
