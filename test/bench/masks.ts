/**
 * What it takes to keep an answer to its schema, beside the model: the mask of each token, for schemas that clients send
 * and for some that are meant to take long, over the demo model's vocabulary and a made one of 200,000 tokens. Means
 * are of the thread's time on its core.
 */
import type { VocabularyBytes } from "../../worker/contract/grammar.ts";
import { defaultEngineLimits } from "../../worker/engine/limits.ts";
import { GrammarTooAmbiguous } from "../../worker/sample/byte-automaton.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarMasks } from "../../worker/sample/grammar-masks.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";
import { demoVocabulary } from "../grammar/adversary.ts";
import { schemaGrammar } from "../grammar/compile.ts";
import { Choices } from "../sim/random.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { largeVocabulary } from "./support/large-vocabulary.ts";
import { nastySchemas, typicalSchemas } from "./support/mask-schemas.ts";
import { figure, quantile } from "./support/stats.ts";

const largeTokenCount = 200_000;
const answerCount = 5;
const nastyTokens = 60;
const kibibyte = 1_024;
const { stepMaskWork } = defaultEngineLimits;

/** Of the thread on its core, which is known to some milliseconds: sums of it are right on a busy machine too. */
interface Span {
  readonly wallMs: number;
  readonly cpuMs: number;
}

function clock(): Span {
  const { user, system } = process.threadCpuUsage();
  return { wallMs: performance.now(), cpuMs: (user + system) / 1_000 };
}

function since(start: Span): Span {
  const end = clock();
  return { wallMs: end.wallMs - start.wallMs, cpuMs: end.cpuMs - start.cpuMs };
}

interface Sample {
  readonly vocabulary: string;
  readonly schema: string;
  /** Of each token of the first answers, each with masks of its own, and of answers that share what was worked out. */
  readonly first: readonly Span[];
  readonly later: readonly Span[];
  /** The longest that one step's work took. */
  readonly sliceMs: number;
  readonly states: number;
  readonly kibibytes: number;
  readonly end: string;
}

class Vocabulary {
  readonly name: string;
  readonly size: number;
  readonly endTokenId: number;
  readonly trie: TokenTrie;
  readonly trieMs: number;
  private readonly idOf = new Map<string, number>();

  constructor(name: string, { vocabulary, endTokenId }: { vocabulary: VocabularyBytes; endTokenId: number }) {
    const start = clock();
    this.trie = new TokenTrie(vocabulary);
    this.trieMs = since(start).cpuMs;
    this.name = name;
    this.size = vocabulary.ends.length;
    this.endTokenId = endTokenId;
    for (let id = this.size - 1; id >= 0; id--)
      this.idOf.set(Buffer.from(this.trie.spelling(id)).toString("latin1"), id);
  }

  masks(schema: unknown): GrammarMasks {
    return new GrammarMasks(schemaGrammar(schema), this.trie, this.size);
  }

  constraint(masks: GrammarMasks): GrammarConstraint {
    return new GrammarConstraint(masks, [this.endTokenId]);
  }

  /** The longest token that the text goes on with. */
  tokenAt(text: string, at: number, allows: (tokenId: number) => boolean): number {
    for (let length = Math.min(this.trie.maxDepth, text.length - at); length > 0; length--) {
      const id = this.idOf.get(text.slice(at, at + length));
      if (id !== undefined && allows(id)) return id;
    }
    throw new Error(`no token of the text is allowed at ${at}: ${text.slice(at, at + 20)}`);
  }
}

const allows = (mask: Int32Array, id: number): boolean => ((mask[id >> 5] >> (id & 31)) & 1) === 1;

/** Of each token: what it takes to take it and to know what may come behind it. */
function follow(vocabulary: Vocabulary, masks: GrammarMasks, answer: unknown): Span[] {
  const constraint = vocabulary.constraint(masks);
  const text = Buffer.from(JSON.stringify(answer)).toString("latin1");
  const spans: Span[] = [];
  let start = clock();
  for (let at = 0; at < text.length; ) {
    const mask = constraint.mask();
    spans.push(since(start));
    const id = vocabulary.tokenAt(text, at, (tokenId) => allows(mask, tokenId));
    at += vocabulary.trie.spelling(id).length;
    start = clock();
    constraint.accept(id);
  }
  if (!allows(constraint.mask(), vocabulary.endTokenId)) throw new Error("a whole answer may not end");
  constraint.release();
  return spans;
}

function typical(vocabulary: Vocabulary, { name, schema, answer }: (typeof typicalSchemas)[number]): Sample {
  follow(vocabulary, vocabulary.masks(schema), answer);
  const [first, later]: [Span[], Span[]] = [[], []];
  let masks = vocabulary.masks(schema);
  for (let i = 0; i < answerCount; i++) {
    masks = vocabulary.masks(schema);
    first.push(...follow(vocabulary, masks, answer));
    later.push(...follow(vocabulary, masks, answer));
  }
  return sampleOf(vocabulary, name, masks, { first, later, sliceMs: longest(first), end: "answered" });
}

type Measured = Pick<Sample, "first" | "later" | "sliceMs" | "end">;

function sampleOf(vocabulary: Vocabulary, schema: string, masks: GrammarMasks, measured: Measured): Sample {
  const { stateCount: states, byteLength } = masks;
  return { vocabulary: vocabulary.name, schema, states, kibibytes: Math.round(byteLength / kibibyte), ...measured };
}

/** Random tokens of what may come, as a high temperature draws them. */
function nasty(vocabulary: Vocabulary, { name, schema }: (typeof nastySchemas)[number]): Sample {
  const choices = new Choices(5);
  const masks = vocabulary.masks(schema);
  const constraint = vocabulary.constraint(masks);
  const [first, slices]: [Span[], Span[]] = [[], []];
  try {
    while (first.length < nastyTokens) {
      const before = slices.length;
      while (!constraint.isReady) {
        const start = clock();
        try {
          constraint.prepare({ left: stepMaskWork });
        } finally {
          slices.push(since(start));
        }
      }
      first.push(sumOf(slices.slice(before)));
      const mask = constraint.mask();
      const allowed = Array.from({ length: vocabulary.size }, (_, id) => id).filter((id) => allows(mask, id));
      const id = choices.pick(allowed);
      if (id === vocabulary.endTokenId) break;
      constraint.accept(id);
    }
  } catch (error) {
    if (!(error instanceof GrammarTooAmbiguous)) throw error;
    const end = `refused after ${first.length} tokens`;
    return sampleOf(vocabulary, name, masks, { first, later: [], sliceMs: longest(slices), end });
  }
  const end = `${first.length} tokens`;
  return sampleOf(vocabulary, name, masks, { first, later: [], sliceMs: longest(slices), end });
}

function sumOf(spans: readonly Span[]): Span {
  const add = (a: Span, b: Span): Span => ({ wallMs: a.wallMs + b.wallMs, cpuMs: a.cpuMs + b.cpuMs });
  return spans.reduce(add, { wallMs: 0, cpuMs: 0 });
}

const meanMs = (spans: readonly Span[]): number => sumOf(spans).cpuMs / spans.length;
const p99Ms = (spans: readonly Span[]): number =>
  quantile(
    spans.map(({ wallMs }) => wallMs),
    0.99,
  );
const longest = (spans: readonly Span[]): number => Math.max(...spans.map(({ wallMs }) => wallMs));

async function run({ say }: BenchContext): Promise<BenchReport> {
  say("vocabularies");
  const vocabularies = [
    new Vocabulary("demo", demoVocabulary()),
    new Vocabulary("made", largeVocabulary(largeTokenCount)),
  ];
  const samplesOf = (vocabulary: Vocabulary) => {
    say(`${vocabulary.name}: ${vocabulary.size} tokens`);
    const usual = typicalSchemas.map((schema) => typical(vocabulary, schema));
    return { usual, hostile: nastySchemas.map((schema) => nasty(vocabulary, schema)) };
  };
  const all = vocabularies.map(samplesOf);
  const samples = all.flatMap(({ usual, hostile }) => [...usual, ...hostile]);
  const usual = (all.at(-1)?.usual ?? []).flatMap(({ first }) => first);
  return {
    model: vocabularies.map(({ name, size }) => `${name} vocabulary of ${size}`).join(", "),
    header: ["vocabulary", "schema", "mean CPU ms", "p99", "shared mean", "longest slice", "states", "KiB", "end"],
    rows: samples.map(({ vocabulary, schema, first, later, sliceMs, states, kibibytes, end }) => [
      ...[vocabulary, schema],
      ...[meanMs(first), p99Ms(first), meanMs(later), sliceMs].map(figure),
      ...[String(states), String(kibibytes), end],
    ]),
    notes: vocabularies.map(
      ({ name, trieMs, trie }) => `${name}: a trie of ${trie.nodeCount} nodes in ${figure(trieMs)} ms`,
    ),
    bars: [
      atMost("mean mask CPU ms of usual schemas, made vocabulary", meanMs(usual), 0.41),
      atMost("longest slice ms", Math.max(...samples.map(({ sliceMs }) => sliceMs)), 20),
    ],
    details: {
      samples: samples.map(({ first, later, ...sample }) => ({
        ...sample,
        meanMs: meanMs(first),
        p99Ms: p99Ms(first),
        sharedMeanMs: meanMs(later),
      })),
    },
  };
}

export const masksBench: Bench = {
  name: "masks",
  summary: "Masks of structured outputs, usual schemas and hostile ones, with the demo model's tokens and with 200,000",
  run,
};
