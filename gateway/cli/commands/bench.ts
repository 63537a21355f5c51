import { type Command, CommandError } from "../support/command.ts";
import { repositoryRoot } from "../support/setup.ts";

export const benchCommand: Command = {
  name: "bench",
  summary: "Run one of the project's benchmarks; the last line is a JSON object.",
  usage: "NAME | --list",
  flags: { list: { type: "boolean", description: "Name them all." } },
  async run(input) {
    const script = `${repositoryRoot}/test/bench/main.ts`;
    if (!(await Bun.file(script).exists())) throw new CommandError("the benchmarks are not part of this installation");
    const args = input.isSet("list") ? ["--list"] : input.positionals;
    const child = Bun.spawn([process.execPath, script, ...args], { stdio: ["inherit", "inherit", "inherit"] });
    return await child.exited;
  },
};
