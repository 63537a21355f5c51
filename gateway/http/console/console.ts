/** GET / and what it loads: the console for browsers, and a map of the server for everybody else. */
import type { Hono } from "hono";
import { accepts } from "hono/accepts";
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { type Asset, assetAnswer, readAssets } from "../../console/assets.ts";
import { consoleFolder, shellFile } from "../../console/build.ts";
import type { AppEnv } from "../transport/context.ts";
import { declare } from "../transport/route.ts";

const links = {
  console: "/",
  docs: "/docs",
  openapi: "/openapi.json",
  health: "/health",
  ready: "/ready",
  models: "/v1/models",
} as const;

const about = {
  root: {
    summary: "The console for browsers; where to find what for other clients.",
    answer: z.strictObject({
      object: z.literal("server"),
      name: z.literal("spangate"),
      version: z.string().describe("Of the server."),
      links: z.record(z.enum(Object.keys(links) as (keyof typeof links)[]), z.string()).describe("Paths by name."),
    }),
    answerTypes: ["text/html"],
  },
  asset: {
    summary: "A script, style or picture of the console, whose name changes with its content.",
    answerTypes: ["text/javascript", "text/css", "image/svg+xml"],
  },
};

/** @param version of the server */
export function addConsoleRoutes(app: Hono<AppEnv>, version: string): void {
  let loading: Promise<ReadonlyMap<string, Asset>> | undefined;
  const assets = async (): Promise<ReadonlyMap<string, Asset>> => {
    loading ??= consoleFolder().then(readAssets);
    try {
      return await loading;
    } catch (error) {
      // The next request tries again.
      loading = undefined;
      throw error;
    }
  };

  declare(app, "GET /", about.root, async (c) => {
    const type = accepts(c, {
      header: "Accept",
      supports: ["application/json", "text/html"],
      default: "application/json",
    });
    c.header("vary", "accept, accept-encoding");
    if (type !== "text/html") return c.json({ object: "server", name: "spangate", version, links });
    const page = (await assets()).get(shellFile);
    if (page === undefined) throw new ApiError("not_found");
    return assetAnswer(page, c.req.raw, false);
  });

  declare(app, "GET /console/:asset", about.asset, async (c) => {
    const name = c.req.param("asset");
    const asset = name === shellFile ? undefined : (await assets()).get(name);
    if (asset === undefined) throw new ApiError("not_found");
    return assetAnswer(asset, c.req.raw, true);
  });
}
