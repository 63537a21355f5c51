/**
 * The kernels of attention plans on a device: against the float64 oracle, then the published trees of shared KV against
 * their floors. `attention.ts [check] [trees [32] [64] [tiles]] [sweep] [#TREE]... [library folder]...`, run from the
 * project's root, without parts check and trees; writes $OUT/attention.json. SPANGATE_KERNEL_CHECKS=small: a few checks
 * alone, for a memory checker.
 */
import { Random } from "../native/random.ts";
import { attentionCases } from "./attention-cases.ts";
import { checkAttention, toBfloat16 } from "./attention-checks.ts";
import { AttentionDevice } from "./attention-device.ts";
import { profileTree, sweepTrees, timeTrees } from "./attention-sweep.ts";
import { freshSeed, gpuOptions, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const { parts } = options;
const isSmall = process.env.SPANGATE_KERNEL_CHECKS === "small";
const asks = (part: string) => (isSmall ? part === "check" : parts.length === 0 || parts.includes(part));
const seed = freshSeed();
const random = new Random(seed);
const only = parts.filter((part) => /^#\d+$/.test(part)).map((part) => Number(part.slice(1)));
const report = new Report();
const device = new AttentionDevice(options.libraryFolders);
console.log(`seed ${seed}`);

if (asks("check")) {
  for (const check of attentionCases(random, isSmall)) {
    const { heads, plan, grid, slots, stepTokens, large } = check;
    const group = heads.queryHeads / heads.kvHeads;
    const items = `${plan.smallRounds} small, ${plan.largeRounds} large (${large})`;
    const name = `heads of ${heads.headDim}, group ${group}, blocks of ${heads.blockTokens}, ${items}, grid ${grid}, slots ${slots}, steps ${stepTokens}`;
    await report.check(name, () => checkAttention(device, random, check));
    device.clear();
  }
  await report.check("offsets wrong by one show", () => {
    const check = attentionCases(random, true)[0];
    let failure = "";
    try {
      checkAttention(device, random, check, 1);
    } catch (error) {
      failure = String(error);
    }
    device.clear();
    assertThat(failure.includes("may differ by"), `nothing showed: ${failure}`);
    return failure;
  });
}
const profiled = parts.find((part) => part.startsWith("profile="));
if (profiled !== undefined) {
  const [index, name, heads] = profiled.slice("profile=".length).split(",");
  profileTree(device, random, Number(index), name, Number(heads));
}
if (parts.includes("sweep") && !isSmall) {
  await report.check("sweep", () => {
    const rates = device.rates(toBfloat16(random.normals(1 << 21, Number.POSITIVE_INFINITY)));
    return sweepTrees(device, random, rates, report, parts.includes("64") ? 64 : 32, only);
  });
}
if (asks("trees")) {
  const rates = device.rates(toBfloat16(random.normals(1 << 21, Number.POSITIVE_INFINITY)));
  const asked = [32, 64].filter((queryHeads) => parts.includes(String(queryHeads)));
  for (const queryHeads of asked.length > 0 ? asked : [32, 64]) {
    const hasWarpgroups = !parts.includes("tiles");
    const run = () => timeTrees(device, random, rates, report, { queryHeads, hasWarpgroups, only });
    await report.check(`trees at ${queryHeads}/8`, run);
  }
}
process.exitCode = await report.end(resultPath(options, "attention.json"));
