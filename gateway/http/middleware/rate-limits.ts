/** Holds callers to their limits: a request is admitted before its body is read, and keeps its place until it ends; a look is only counted. */
import type { Context } from "hono";
import type { Principal } from "../../tenant/principal.ts";
import type { Admission, LimitedOwner, RateLimiter, Standing } from "../../tenant/rate-limiter.ts";
import type { AppEnv } from "../transport/context.ts";
import type { Step } from "./steps.ts";

export interface RateLimitDeps {
  readonly limiter: RateLimiter;
  readonly ownersOf: (principal: Principal) => readonly LimitedOwner[];
}

export function rateLimits({ limiter, ownersOf }: RateLimitDeps): Step {
  return (context) => {
    let owners: readonly LimitedOwner[] = [];
    let admission: Admission | undefined;
    let open = false;
    context.set("held", {
      admit: (principal, count) => {
        owners = ownersOf(principal);
        // A caller without limits is admitted too: its tokens stand in the log.
        if (count === "look") limiter.look(owners);
        else admission = limiter.admit(context.get("requestId"), owners);
      },
      holdOpen: () => {
        open = true;
        return () => admission?.end();
      },
      whenEnded: (callback) => {
        if (admission === undefined) callback(undefined);
        else admission.whenEnded(() => callback(admission?.usedTokens));
      },
    });
    return () => {
      if (!open) admission?.end();
      for (const kind of ["requests", "tokens"] as const) writeStanding(context, kind, limiter.standing(owners, kind));
    };
  };
}

/** Writes the headers in which OpenAI's servers tell what is left of a limit. */
function writeStanding(context: Context<AppEnv>, kind: "requests" | "tokens", standing: Standing | undefined): void {
  if (standing === undefined) return;
  const { headers } = context.res;
  headers.set(`x-ratelimit-limit-${kind}`, String(standing.limit));
  headers.set(`x-ratelimit-remaining-${kind}`, String(standing.remaining));
  headers.set(`x-ratelimit-reset-${kind}`, durationText(standing.resetMs));
}

/** "17ms", "1.5s", "6m0s". */
export function durationText(ms: number): string {
  if (ms < 1000) return `${Math.ceil(ms)}ms`;
  const seconds = Math.ceil(ms / 100) / 10;
  if (seconds < 60) return `${seconds}s`;
  return `${Math.floor(seconds / 60)}m${Math.ceil(seconds % 60)}s`;
}
