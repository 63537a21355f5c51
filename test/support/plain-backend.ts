/** A backend that lacks some of what it may have, so that the engine takes its plain path: for comparison. */
import type { Backend } from "../../worker/backend/backend.ts";

export interface BackendParts {
  /** false: a step is waited for before the next begins. */
  readonly pipelined?: boolean | undefined;
  /** Tokens are drawn on the host, and steps are waited for. */
  readonly hostSampling?: boolean | undefined;
}

export function withParts(backend: Backend, { pipelined = true, hostSampling = false }: BackendParts): Backend {
  const missing: PropertyKey[] = [];
  if (!pipelined || hostSampling) missing.push("beginStep");
  if (hostSampling) missing.push("sampleStep");
  if (missing.length === 0) return backend;
  return new Proxy(backend, {
    get(target, name) {
      if (missing.includes(name)) return undefined;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
