/**
 * The interface between the engine and the hardware. One backend owns the KV memory, the weights and the streams of one
 * device; the engine owns which block holds what.
 */
import type { Batch, TokenCopies } from "../contract/batch.ts";
import type { FileBlocks, SealedBlocks } from "../contract/kv-object.ts";
import type { ModelCard } from "../contract/model-card.ts";
import type { ChoiceCounts, ChoiceMode } from "../contract/sparse.ts";
import type { BlockId } from "../contract/units.ts";
import type { SampledToken, SampleRequest } from "../sample/sampler.ts";

/** The device does nothing any more: this worker process ends, and a new one starts. */
export class DeviceLost extends Error {
  override readonly name = "DeviceLost";
}

export type BackendShape = Pick<
  ModelCard,
  "vocabSize" | "contextTokens" | "blockTokens" | "blockCount" | "kvBytesPerBlock" | "blends"
> & {
  /** Absent: it chooses nothing, and has no memory for it. */
  readonly sparse?: SparseShape;
};

/** What a backend has for rows that choose what they read. */
export interface SparseShape {
  /** Requests that can choose at a time. */
  readonly seats: number;
  /** The most tokens of a buffer, forced ones with them. */
  readonly listTokens: number;
  /** What is read of a block to choose from it; beside the pool, and not a part of `kvBytesPerBlock`. */
  readonly shadowBytesPerBlock: number;
  readonly modes: readonly ChoiceMode[];
  /** The most segments and tokens that a row chooses from; undefined: any number. */
  readonly mostSegments?: number;
  readonly mostCandidates?: number;
  /** Rows read what they choose where it is kept: nothing is copied, and there are no buffers. */
  readonly readsInPlace?: true;
}

/** What of it is wanted when a backend is opened. */
export interface SparseOptions extends Pick<SparseShape, "seats" | "listTokens"> {
  /** Bits of each number in the shadow of K. */
  readonly shadowBits: 2 | 4;
  /** Queries are kept, for the modes that choose by earlier ones. */
  readonly rings: boolean;
}

/** What a packed block is. */
export interface BlockFormat {
  /** Names the arithmetic that computed it and how it lies in the bytes; KV of another name is another's. */
  readonly name: string;
  readonly bytes: number;
  readonly layers: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Numbers of the layout, of the type of an element and of how elements are coded, each below 256. */
  readonly layout: number;
  readonly element: number;
  readonly codec: number;
}

/** Copies blocks between the pool and host memory, byte for byte. */
export interface BlockMover {
  readonly format: BlockFormat;
  /** Copies a block that no step writes to; slots from `tokenCount` on become zeros in `out`. */
  pack(blockId: BlockId, tokenCount: number, out: Uint8Array): void;
  /** Fills a block that no step has. Steps that begin after the call read what it wrote; `packed` may change then. */
  unpack(blockId: BlockId, packed: Uint8Array): void;
  /**
   * Opens sealed blocks, each into a block that no step has, as `unpack` fills it. Undefined: they are opened elsewhere.
   * @returns for each block one of `openings`; unless it was opened it is as it was
   */
  readonly open?: ((sealed: SealedBlocks, blockIds: Int32Array) => Uint8Array) | undefined;
  /** Does the same with files that the system has in memory, without a copy in between. */
  readonly files?: FileOpener | undefined;
}

/** Opens blocks of files that the system has in memory; it never waits for a disk. */
export interface FileOpener {
  /** Whether these bytes of the file are in memory, as far as a look at some of them says. */
  isAtHand(fd: number, at: number, bytes: number): boolean;
  /** As `BlockMover.open`. */
  open(blocks: FileBlocks, blockIds: Int32Array): Uint8Array;
}

/** A block of the pool, and how many tokens of it hold something. */
export interface FilledBlock {
  readonly blockId: BlockId;
  readonly tokenCount: number;
}

/** Packed blocks that were copied to the device and lie beside its pool. */
export interface FetchedBlocks {
  /**
   * Fills blocks that no step has, each with the fetched block of the same index; undefined: that one is dropped. Steps
   * that begin after the call read what it wrote. Must be called, once.
   */
  place(blockIds: readonly (BlockId | undefined)[]): void;
}

/** At most so many copies in each direction are under way, each of at most so many blocks. */
export interface CopyPace {
  readonly copiesAtOnce: number;
  readonly blocksPerCopy: number;
}

/**
 * Page-locked memory of the host that holds packed blocks in numbered slots. Copies run beside the steps; they may be
 * begun while steps are in flight.
 */
export interface HostBlocks {
  readonly format: BlockFormat;
  /** [slots] the memory of each slot, of `format.bytes`. Not to be touched while a copy has it. */
  readonly slots: readonly Uint8Array[];
  readonly pace: CopyPace;
  /** What a step itself copies waits behind the copies that are under way, so they are fewer and shorter. */
  readonly paceBesideDecodes: CopyPace;
  /**
   * Packs blocks that no step in flight writes into slots. They may be used for something else when the call has
   * returned; the slots hold them when it resolves, with zeros behind the last token.
   * @throws DeviceLost
   */
  store(blocks: readonly FilledBlock[], slots: readonly number[]): Promise<void>;
  /** Copies slots to the device. The slots may be written again when it resolves. @throws DeviceLost */
  fetch(slots: readonly number[]): Promise<FetchedBlocks>;
}

/** A step that was begun and may still run. */
export interface BegunStep {
  /** true: the device draws the tokens, so rows of the step that is begun next can name them. */
  readonly drawsOnDevice: boolean;
  /**
   * Waits for the step; answers as `sampleStep` does. Called once for each step, in the order in which steps were
   * begun.
   * @throws DeviceLost, or what made the step fail
   */
  tokens(): Promise<readonly (SampledToken | undefined)[]>;
}

export interface Backend {
  readonly name: string;
  readonly shape: BackendShape;
  /**
   * Runs one step: in each layer writes K and V of every row into its slot and only then attends, so that a
   * piece may see a run that the same step completes. Answers the logits of `logitRows` as float32 [N, vocabSize]; the
   * array is the backend's own and valid until the next call.
   */
  forward(batch: Batch): Promise<Float32Array>;
  /**
   * Of the first `rowCount` rows that the last `forward` answered, the id of the greatest logit, the lowest of equal
   * ones; -1 where one is NaN or none is finite. Valid as long as the logits. Absent: who draws looks for it.
   */
  greatestLogits?(rowCount: number): Int32Array;
  /**
   * `forward`, and then draws a token for each of `logitRows` as Sampler does (worker/sample), where the logits are.
   * Answers [N] tokens, undefined where a logit is NaN or none is finite. A backend without it leaves drawing to the
   * engine.
   */
  sampleStep?(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]>;
  /**
   * Begins a step, also one without logit rows, and does not wait for it; the next step reads what this one writes.
   * `batch` and `requests` are read before it returns. While a step is in flight, one more can be begun, and nothing
   * else may be called. A backend without this method runs one step after the other.
   * @throws Error when the step is more than the backend takes; nothing has begun then
   */
  beginStep?(batch: Batch, requests: readonly SampleRequest[]): BegunStep;
  /** Copies single tokens: K is rotated further by the token's delta, V is copied unchanged. */
  copyTokens(copies: TokenCopies): Promise<void>;
  /**
   * Runs the rows of a batch through layer 0 alone, writes its K and V, and compares the K and V that layer 1 would get
   * with what the rows' slots hold. Answers [T] squared L2 distances of K and V together, meaningless for a slot that
   * holds nothing, and 0 for a model of one layer. The backend overwrites the array in the next call.
   */
  deviations(batch: Batch): Promise<Float32Array>;
  /**
   * What the rows of a seat came to, in steps that were answered: one that is in flight may be counted or not. Present
   * where `shape.sparse` is.
   */
  choiceCounts?(seat: number): ChoiceCounts;
  /** Absent: blocks stay on the device. */
  readonly mover?: BlockMover;
  /** Memory of the host beside the device's; absent: there is none, or the pool is the host's memory itself. */
  readonly hostBlocks?: HostBlocks;
  /** Frees device memory; the backend is not used afterwards. */
  dispose(): Promise<void>;
}
