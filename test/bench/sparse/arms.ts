/** The ways to choose that are compared, by the names that tables and options call them. */
import type { SparseParams } from "../../../worker/contract/sparse.ts";

/** Undefined: dense. The paper's own setting predicts for every step and never looks again. */
export const arms: Readonly<Record<string, Omit<SparseParams, "tokens"> | undefined>> = {
  dense: undefined,
  now: { mode: "now" },
  ahead: { mode: "ahead" },
  quest: { mode: "quest" },
  tova: { mode: "tova" },
  exact: { mode: "exact" },
  paper: { mode: "ahead", refreshSteps: 1, leastCosine: -1 },
  algorithm1: { mode: "algorithm1", refreshSteps: 1, leastCosine: -1 },
  last: { mode: "last" },
};

/** The part of a question's context that each row chooses. */
export const chosenPart = 1 / 8;
