/** Operators are told of every run that failed, and with what; one that ended, or was refused, is none of them. */
import { expect, test } from "bun:test";
import type { ErrorCode } from "../../gateway/base/errors.ts";
import { greedy, readyRig, request } from "./rig.ts";

test("each failed run is told of once, with its code", async () => {
  const failures: ErrorCode[] = [];
  const options = { maxRunningPerWorker: 2, maxWaiting: 1, onFailed: (code: ErrorCode) => void failures.push(code) };
  const { dispatcher, process } = readyRig(1, options);
  const submit = (id: string, changes = {}) => dispatcher.submit(request(id, { params: greedy(3), ...changes }));
  const ended = submit("ended");
  for (let tick = 0; tick < 3; tick++) process.core.tick();
  for await (const _ of ended);
  const left = submit("left");
  await left.return?.();
  expect(failures).toEqual([]);

  const lost = submit("lost");
  submit("beside");
  process.core.tick();
  await lost.next();
  await expect(submit("late", { deadlineMs: 1 }).next()).rejects.toMatchObject({ code: "deadline_exceeded" });
  const waiting = submit("waiting");
  expect(() => submit("refused")).toThrow();
  expect(failures).toEqual(["deadline_exceeded"]);
  process.die();
  await expect(lost.next()).rejects.toMatchObject({ code: "worker_lost" });
  const ends = Promise.allSettled([waiting.next()]);
  await dispatcher.drain(0);
  await ends;
  // The two that had given tokens, then the one that waited.
  expect(failures).toEqual(["deadline_exceeded", "worker_lost", "worker_lost", "server_shutdown"]);
});
