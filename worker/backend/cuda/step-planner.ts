/** The attention plans of a step: one for layers that see all of a prompt, and one for those that slide. */

import { WindowCutter } from "../../attention/batches/windowed.ts";
import { type AttentionPlan, emptyPlan } from "../../attention/plan-format.ts";
import { PackPlanner } from "../../attention/planner.ts";
import type { PackShape } from "../../attention/shape.ts";
import type { Batch } from "../../contract/batch.ts";
import type { ModelConfig } from "../../model/config.ts";
import { withoutChosen } from "./sparse/choice-words.ts";

/** The plans of a step. */
export interface StepPlans {
  /** The plan for layers that see all of a prompt. */
  readonly full: AttentionPlan;
  /** The plan for layers with a sliding window; undefined: the model has none. */
  readonly sliding?: AttentionPlan | undefined;
}

export class StepPlanner {
  /** undefined: every layer slides. */
  readonly #full: PackPlanner | undefined;
  readonly #sliding: { readonly planner: PackPlanner; readonly cutter: WindowCutter } | undefined;

  constructor({ window }: Pick<ModelConfig, "window">, shape: PackShape) {
    this.#full = window?.layers.every(Boolean) ? undefined : new PackPlanner(shape);
    if (window === undefined) return;
    const planner = new PackPlanner(shape);
    const { blockTokens } = shape;
    const cutter = new WindowCutter({ windowTokens: window.tokens, blockTokens, fewRows: planner.fewRows });
    this.#sliding = { planner, cutter };
  }

  /** Valid until the next `plan`. */
  plan(step: Batch): StepPlans {
    const batch = withoutChosen(step);
    const full = this.#full?.plan(batch) ?? emptyPlan;
    if (this.#sliding === undefined) return { full };
    const { planner, cutter } = this.#sliding;
    return { full, sliding: planner.plan(cutter.cut(batch)) };
  }
}
