import { describe, expect, test } from "bun:test";
import { WorkerAdmission } from "../../../gateway/dispatch/placement/worker-admission.ts";
import { fakeCard } from "../fake-core.ts";

const stepPromptTokens = 100;

function opened(card: typeof fakeCard | undefined = { ...fakeCard, stepPromptTokens }) {
  const admission = new WorkerAdmission({ maxRunningPerWorker: 16, registry: { card: () => card }, nowMs: () => 0 });
  admission.note("tenant_a");
  return admission;
}

describe("prompts that a tenant has at a worker", () => {
  test("have no bound while it is alone", () => {
    const admission = opened();
    admission.enter("worker-0", "tenant_a", 10_000);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(true);
  });

  test("are those of two steps while others are there, and theirs are their own", () => {
    const admission = opened();
    admission.note("tenant_b");
    admission.enter("worker-0", "tenant_a", 199);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(true);
    admission.enter("worker-0", "tenant_a", 1);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(false);
    expect(admission.hasPromptRoom("worker-0", "tenant_b")).toBe(true);
    expect(admission.hasPromptRoom("worker-1", "tenant_a")).toBe(true);
  });

  test("count until they are computed, or their request or their worker is gone", () => {
    const admission = opened();
    admission.note("tenant_b");
    admission.enter("worker-0", "tenant_a", 500);
    admission.prompted("worker-0", "tenant_a", 500);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(true);
    admission.leave("worker-0", "tenant_a");
    admission.enter("worker-0", "tenant_a", 500);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(false);
    admission.forget("worker-0");
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(true);
    // What is late of a worker that is gone takes nothing from the next.
    admission.prompted("worker-0", "tenant_a", 500);
    admission.leave("worker-0", "tenant_a");
    admission.enter("worker-0", "tenant_a", 200);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(false);
  });

  test("have no bound when the worker has told of none", () => {
    const admission = opened(fakeCard);
    admission.note("tenant_b");
    admission.enter("worker-0", "tenant_a", 10_000);
    expect(admission.hasPromptRoom("worker-0", "tenant_a")).toBe(true);
  });
});
