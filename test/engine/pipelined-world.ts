/** An engine over the fake device, which takes a step while one is in flight. */

import type { Batch } from "../../worker/contract/batch.ts";
import { FakeDevice } from "../support/fake-device.ts";
import { TinyWorld } from "./harness.ts";

export interface PipelinedOptions {
  readonly blockCount?: number;
  readonly contextTokens?: number;
  readonly stepTokens?: number;
  readonly pipelined?: boolean;
  readonly onForward?: (batch: Batch) => void | Promise<void>;
  readonly onBegin?: (batch: Batch) => void;
}

export interface PipelinedWorld {
  readonly world: TinyWorld;
  readonly device: FakeDevice;
}

export function pipelinedWorld(options: PipelinedOptions = {}): PipelinedWorld {
  const { blockCount = 32, contextTokens = 256, stepTokens = 64, pipelined, onForward, onBegin } = options;
  const device = new FakeDevice({ shape: { blockCount, contextTokens }, onForward, onBegin });
  return { world: new TinyWorld({ backend: device, limits: { stepTokens }, pipelined }), device };
}
