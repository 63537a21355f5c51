/** Flags, help, exit codes and suggestions, as every command has them. */
import { afterEach, describe, expect, spyOn, test } from "bun:test";
import { type Command, CommandError, type CommandInput } from "../../../gateway/cli/support/command.ts";
import { runCommandLine } from "../../../gateway/cli/support/program.ts";

const variable = "SPANGATE_TEST_COLOUR";
/** What the command was run with last. */
const inputs: CommandInput[] = [];
const fetch: Command = {
  name: "fetch",
  summary: "Fetches.",
  usage: "NAME",
  flags: {
    count: { type: "string", short: "c", value: "N", description: "How many." },
    tag: { type: "string", multiple: true, description: "A tag." },
    force: { type: "boolean", description: "Anyway." },
    colour: { type: "string", value: "NAME", description: "Its colour.", env: variable },
  },
  run: async (given) => {
    inputs.push(given);
    given.integer("count", { min: 1, max: 9 });
    if (given.positionals.includes("broken")) throw new CommandError("it is broken");
    return 0;
  },
};
const other: Command = { ...fetch, name: "bring", summary: "Brings.", flags: {} };

afterEach(() => {
  delete process.env[variable];
});

async function run(...args: readonly string[]) {
  inputs.length = 0;
  const said = { output: "", errors: "" };
  const output = spyOn(process.stdout, "write").mockImplementation((text) => {
    said.output += text;
    return true;
  });
  const errors = spyOn(process.stderr, "write").mockImplementation((text) => {
    said.errors += text;
    return true;
  });
  try {
    const code = await runCommandLine([fetch, other], args, "1.2.3");
    return { ...said, code, input: inputs.at(-1) };
  } finally {
    output.mockRestore();
    errors.mockRestore();
  }
}

describe("flags", () => {
  test("are read with repeated ones and positionals between", async () => {
    const { code, input: given } = await run("fetch", "a", "-c", "3", "--tag", "x", "--tag=y", "--force", "b", "-");
    expect(code).toBe(0);
    expect(given?.positionals).toEqual(["a", "b", "-"]);
    expect(given?.text("count")).toBe("3");
    expect(given?.texts("tag")).toEqual(["x", "y"]);
    expect(given?.isSet("force")).toBe(true);
    expect(given?.isGiven("force")).toBe(true);
  });

  test("that were not given are undefined, empty or false", async () => {
    const { input: given } = await run("fetch");
    expect(given?.text("count")).toBeUndefined();
    expect(given?.texts("tag")).toEqual([]);
    expect(given?.isSet("force")).toBe(false);
    expect(given?.integer("count", { min: 1, max: 9 })).toBeUndefined();
  });

  test("have a variable, which the command line outdoes and which counts as unset when empty", async () => {
    process.env[variable] = "red";
    const fromVariable = (await run("fetch")).input;
    expect([fromVariable?.text("colour"), fromVariable?.isGiven("colour")]).toEqual(["red", false]);
    const fromFlag = (await run("fetch", "--colour", "blue")).input;
    expect([fromFlag?.text("colour"), fromFlag?.isGiven("colour")]).toEqual(["blue", true]);
    process.env[variable] = "";
    expect((await run("fetch")).input?.text("colour")).toBeUndefined();
  });

  test.each(["--bogus", "--count", "--force=yes", "-x"])("refuses %s", async (flag) => {
    const { code, errors, input: given } = await run("fetch", flag);
    expect({ code, given }).toEqual({ code: 2, given: undefined });
    expect(errors).toStartWith("spangate: ");
  });

  test.each(["0", "10", "2.5", "x", ""])("refuses --count=%s out of 1 to 9", async (value) => {
    const { code, errors } = await run("fetch", `--count=${value}`);
    expect(code).toBe(2);
    expect(errors).toMatch(
      /^spangate fetch: --count must be a whole number from 1 to 9.*\n\nUsage: spangate fetch NAME\n$/,
    );
  });
});

test("typing errors get a suggestion", async () => {
  expect(await run("fecth")).toMatchObject({
    code: 2,
    errors: "spangate: unknown command 'fecth'\n(Did you mean fetch?)\nTry \"spangate --help\".\n",
  });
  expect((await run("fetch", "--cuont", "3")).errors).toBe(
    "spangate: unknown option '--cuont'\n(Did you mean --count?)\nTry \"spangate fetch --help\".\n",
  );
});

test("a failure is one sentence and exit code 1", async () => {
  expect(await run("fetch", "broken")).toMatchObject({ code: 1, errors: "spangate fetch: it is broken\n" });
});

test("help and version are no failures, and no command is wrong usage", async () => {
  for (const flag of ["-V", "--version"])
    expect(await run(flag)).toMatchObject({ code: 0, output: "1.2.3\n", errors: "" });
  for (const args of [
    ["fetch", "-h"],
    ["fetch", "--help"],
    ["help", "fetch"],
  ]) {
    const { code, output, errors } = await run(...args);
    expect({ code, errors }).toEqual({ code: 0, errors: "" });
    expect(output).toContain("Usage: spangate fetch NAME");
    for (const part of ["-c, --count <N>", "--tag", "--force", "-h, --help", "How many.", `env: ${variable}`])
      expect(output).toContain(part);
  }
  const all = await run("--help");
  expect(all).toMatchObject({ code: 0, errors: "" });
  for (const part of ["fetch", "Brings.", "Exit codes: 0 done"]) expect(all.output).toContain(part);
  expect((await run()).code).toBe(2);
});
