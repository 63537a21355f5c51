import { distributeRules } from "./distribute.ts";
import { expandRules } from "./expand.ts";
import { reduceRules } from "./reduce.ts";
import type { Rule } from "./rule.ts";
import { bulkRules, shareRules } from "./runs.ts";
import { simplifyRules } from "./simplify.ts";

/** All rules. Where several apply to a node, the first in this list does. */
export const standardRules: readonly Rule[] = [
  ...expandRules,
  ...simplifyRules,
  ...shareRules,
  ...distributeRules,
  ...reduceRules,
  ...bulkRules,
];
