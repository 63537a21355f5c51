/** Bodies that are nasty for every route that reads JSON, whatever it reads it for. */
import { type StallCase, target } from "./case.ts";
import { mib, times } from "./texts.ts";

const bodies: Readonly<Record<string, () => string>> = {
  "many small values": () => `{"x":[${times(500_000, () => "{}").join(",")}]}`,
  escapes: () => `{"x":"${"\\u0061".repeat(1_390_000)}"}`,
  "a field of 8 MiB": () => `{"x":"${"y".repeat(8 * mib - 64)}"}`,
};

/** @param routes those that read JSON, as /openapi.json has them */
export function bodyCases(routes: readonly string[]): readonly StallCase[] {
  return routes.flatMap((route) =>
    Object.entries(bodies).map(([name, make]) => ({
      route,
      name: `body: ${name}`,
      as: isPlatforms(route) ? ("platform" as const) : ("tenant" as const),
      make: (world) => ({
        ...target({ ...world, ids: { ...anyIds, ...world.ids } }, route),
        body: make(),
        contentType: "application/json",
      }),
    })),
  );
}

/** Of objects that no case has made yet. */
const anyIds = { bulk_id: "x", result_id: "x", request_batch_id: "x", message_batch_id: "x" };

const isPlatforms = (route: string): boolean => /\/admin\/v1\/tenants$|(PATCH|PUT) \/admin\/v1\/tenants/.test(route);
