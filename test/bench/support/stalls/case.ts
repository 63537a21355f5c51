/** A request at the largest or the nastiest that its route takes. */
import type { StallWorld } from "./world.ts";

export interface StallRequest {
  readonly method: string;
  /** With its query string. */
  readonly path: string;
  readonly body?: string | FormData;
  readonly contentType?: string;
}

export interface StallCase {
  /** As /openapi.json has it: "POST /v1/chat/completions". */
  readonly route: string;
  readonly name: string;
  /** Whose key; default: the tenant's. */
  readonly as?: "tenant" | "platform";
  /** The answer never ends: it is read for a second. */
  readonly stream?: boolean;
  /** What runs on behind the answer is watched for so long; default: 300 ms. */
  readonly afterMs?: number;
  /** It is watched until the file is ingested, or until so much of it was seen. */
  readonly ingests?: boolean;
  /** Called before the watch begins, for each round. */
  make(world: StallWorld): StallRequest | Promise<StallRequest>;
}

/** Splits "POST /v1/x", and fills in the world's ids; `suffix` follows the path. */
export function target(world: StallWorld, route: string, suffix = ""): Pick<StallRequest, "method" | "path"> {
  const [method = "", template = ""] = route.split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, name: string) => {
    const id = world.ids[name];
    if (id === undefined) throw new Error(`the world has no ${name} for ${route}`);
    return id;
  });
  return { method, path: path + suffix };
}

export function jsonCase(
  route: string,
  name: string,
  body: (world: StallWorld) => unknown,
  more: Pick<StallCase, "as" | "afterMs"> = {},
): StallCase {
  return {
    route,
    name,
    ...more,
    make: (world) => ({
      ...target(world, route),
      body: JSON.stringify(body(world)),
      contentType: "application/json",
    }),
  };
}

export function plainCase(
  route: string,
  name: string,
  suffix = "",
  more: Pick<StallCase, "as" | "afterMs"> = {},
): StallCase {
  return { route, name, ...more, make: (world) => target(world, route, suffix) };
}
