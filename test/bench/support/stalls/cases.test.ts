/** What `bench stalls` sends: whoever adds a route adds its nastiest request. */
import { expect, test } from "bun:test";
import { routes } from "../../../../gateway/http/transport/routes.ts";
import { casesOfRoutes } from "./cases.ts";

/** As /openapi.json names it. */
const documented = (route: string): string => route.replace(/:(\w+)/g, "{$1}");

test("every route has a request of its own, and every request a route", () => {
  const declared = Object.keys(routes).map(documented);
  const sent = new Set(casesOfRoutes.map(({ route }) => route));
  expect(declared.filter((route) => !sent.has(route))).toEqual([]);
  expect([...sent].filter((route) => !declared.includes(route))).toEqual([]);
});

test("no two requests of a route have the same name", () => {
  const names = casesOfRoutes.map(({ route, name }) => `${route} ${name}`);
  expect(names.filter((name, at) => names.indexOf(name) !== at)).toEqual([]);
});
