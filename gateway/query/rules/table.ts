import { distributeRules } from "./distribute.ts";
import { expandRules } from "./expand.ts";
import { reduceRules } from "./reduce.ts";
import type { Rule } from "./rule.ts";
import { bulkRules, shareRules } from "./runs.ts";
import { simplifyRules } from "./simplify.ts";

/** All rules. At one node the first that fires goes first. */
export const standardRules: readonly Rule[] = [
  ...expandRules,
  ...simplifyRules,
  ...shareRules,
  ...distributeRules,
  ...reduceRules,
  ...bulkRules,
];
