import { describe, expect, test } from "bun:test";
import { Windows } from "../../../gateway/dispatch/placement/worker-admission.ts";
import { fakeCard } from "../fake-core.ts";

const stepPromptTokens = 100;

function opened(card: typeof fakeCard | undefined = { ...fakeCard, stepPromptTokens }) {
  const windows = new Windows({ maxRunningPerWorker: 16, registry: { card: () => card }, nowMs: () => 0 });
  windows.note("tenant-a");
  return windows;
}

describe("prompts that a tenant has at a worker", () => {
  test("have no bound while it is alone", () => {
    const windows = opened();
    windows.enter("worker-0", "tenant-a", 10_000);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(true);
  });

  test("are those of two steps while others are there, and theirs are their own", () => {
    const windows = opened();
    windows.note("tenant-b");
    windows.enter("worker-0", "tenant-a", 199);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(true);
    windows.enter("worker-0", "tenant-a", 1);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(false);
    expect(windows.hasPromptRoom("worker-0", "tenant-b")).toBe(true);
    expect(windows.hasPromptRoom("worker-1", "tenant-a")).toBe(true);
  });

  test("count until they are computed, or their request or their worker is gone", () => {
    const windows = opened();
    windows.note("tenant-b");
    windows.enter("worker-0", "tenant-a", 500);
    windows.prompted("worker-0", "tenant-a", 500);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(true);
    windows.leave("worker-0", "tenant-a");
    windows.enter("worker-0", "tenant-a", 500);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(false);
    windows.forget("worker-0");
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(true);
    // What is late of a worker that is gone takes nothing from the next.
    windows.prompted("worker-0", "tenant-a", 500);
    windows.leave("worker-0", "tenant-a");
    windows.enter("worker-0", "tenant-a", 200);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(false);
  });

  test("have no bound when the worker has told of none", () => {
    const windows = opened(fakeCard);
    windows.note("tenant-b");
    windows.enter("worker-0", "tenant-a", 10_000);
    expect(windows.hasPromptRoom("worker-0", "tenant-a")).toBe(true);
  });
});
