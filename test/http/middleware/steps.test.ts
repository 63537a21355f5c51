/** Steps that every request passes: their order, and what becomes of the others when one fails. */
import { expect, test } from "bun:test";
import { Hono } from "hono";
import { inSteps, type Step } from "../../../gateway/http/middleware/steps.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";

/** What a request of an app with these steps did, in order. */
async function way(steps: (seen: string[]) => readonly Step[], handler: () => Response = () => new Response("fine")) {
  const seen: string[] = [];
  const app = new Hono<AppEnv>();
  const answerTo = (thrown: unknown): Response => {
    seen.push(`answer to ${thrown instanceof Error ? thrown.message : String(thrown)}`);
    return new Response(null, { status: 418 });
  };
  app.use("*", inSteps(steps(seen), answerTo));
  app.onError(answerTo);
  app.get("/", () => {
    seen.push("handler");
    return handler();
  });
  return { answer: await app.request("/"), seen };
}

const step =
  (seen: string[], name: string): Step =>
  ({ res }) => {
    seen.push(name);
    void res;
    return () => seen.push(`after ${name}`);
  };

const throwing = (thrown: unknown) => (): never => {
  throw thrown;
};

test("steps run before the handler, and what they left to do after it, the last first", async () => {
  const { answer, seen } = await way((seen) => [step(seen, "a"), () => undefined, step(seen, "b")]);
  expect(answer.status).toBe(200);
  expect(seen).toEqual(["a", "b", "handler", "after b", "after a"]);
});

test("a step that throws is answered: neither later steps nor the handler run, earlier ones see the answer", async () => {
  const statuses: number[] = [];
  const { answer, seen } = await way((seen) => [
    (context) => () => void statuses.push(context.res.status),
    throwing(new Error("no")),
    step(seen, "b"),
  ]);
  expect(answer.status).toBe(418);
  expect(seen).toEqual(["answer to no"]);
  expect(statuses).toEqual([418]);
});

test("steps see the answer to what a handler throws", async () => {
  const statuses: number[] = [];
  const note: Step = (context) => () => void statuses.push(context.res.status);
  for (const thrown of [new Error("no"), "no"]) {
    const { answer, seen } = await way(() => [note], throwing(thrown));
    expect([answer.status, ...seen]).toEqual([418, "handler", "answer to no"]);
  }
  expect(statuses).toEqual([418, 418]);
});

test("what a step does after the answer may throw: the others still do theirs", async () => {
  const { answer, seen } = await way((seen) => [step(seen, "a"), () => throwing(new Error("late"))]);
  expect(answer.status).toBe(418);
  expect(seen).toEqual(["a", "handler", "answer to late", "after a"]);
});
