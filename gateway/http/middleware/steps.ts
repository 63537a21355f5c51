/**
 * What every request passes on its way to its handler and back, one step after the other. Steps are synchronous and
 * share one middleware: as middlewares around each other, each made promises of its own and waited for the next one's,
 * which took a tenth of the gateway's time for a short answer.
 */
import type { Context, MiddlewareHandler } from "hono";
import type { AppEnv } from "../transport/context.ts";

/** Called once the answer is there (`context.res`), be it an error's. */
type AfterAnswer = () => void;

/**
 * What is to be done before a request's handler. What it throws is answered, and neither later steps nor the handler run.
 * @returns what is to be done with the answer; undefined: nothing
 */
export type Step = (context: Context<AppEnv>) => AfterAnswer | undefined;

/**
 * Runs the steps before the handler, and what they returned, the last first, when the answer is there.
 * @param answerTo makes the answer that tells of what was thrown
 */
export function inSteps(
  steps: readonly Step[],
  answerTo: (thrown: unknown, context: Context<AppEnv>) => Response,
): MiddlewareHandler<AppEnv> {
  const fail = (context: Context<AppEnv>, thrown: unknown): void => {
    context.error = thrown instanceof Error ? thrown : new Error("something else than an error was thrown");
    context.res = answerTo(thrown, context);
  };
  return async (context, next) => {
    const begun: AfterAnswer[] = [];
    try {
      for (const step of steps) {
        const after = step(context);
        if (after !== undefined) begun.push(after);
      }
      await next();
    } catch (thrown) {
      fail(context, thrown);
    }
    for (let after = begun.pop(); after !== undefined; after = begun.pop()) {
      try {
        after();
      } catch (thrown) {
        // The steps around it still see the answer, and give back what they hold.
        fail(context, thrown);
      }
    }
  };
}
