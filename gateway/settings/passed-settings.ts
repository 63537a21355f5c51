/** Settings that the gateway does not read itself: those of workers, of the program that starts it, of libraries. */

export interface Setting {
  /** The value's name in the help: `--port PORT`. */
  readonly value: string;
  /** What holds without it, as Markdown. */
  readonly byDefault: string;
  /** As Markdown for docs/operations.md. */
  readonly meaning: string;
  /** `false`: `serve` has no flag for it. A secret would stand in the list of processes. */
  readonly flag?: false;
  /** The flag stands alone, and means 1. */
  readonly isSwitch?: true;
}

/** What workers read (worker/config.ts), passed on to them as it is. */
export const workerSettings = {
  SPANGATE_KV_TYPE: {
    value: "TYPE",
    byDefault: "`float16`",
    meaning:
      "or `float32`: twice the KV memory; all arithmetic is float32 either way. On the CPU alone; a GPU holds bfloat16",
  },
  SPANGATE_KV_CODEC: {
    value: "CODEC",
    byDefault: "`raw`",
    meaning:
      'or `mx8`: KV is rounded to 8 bits when it is computed, 32 values sharing a power of two: 0.52 of the bytes of `float16`, in memory and in files. On the CPU for heads of a multiple of 32 dimensions, on GPUs of compute capability 9.0 for heads of 64 or 128; not with `relocate` or `"reuse": "blend"`',
  },
  SPANGATE_KV_POSITIONS: {
    value: "MODE",
    byDefault: "`deferred`",
    meaning:
      "or `relocate`: K is stored at absolute positions and moved to where a request wants it; a baseline for comparison",
  },
  SPANGATE_SPARSE: {
    value: "MODE",
    byDefault: "`off`",
    meaning:
      "or `now`, or `ahead`: tokens of answers over long contexts choose what they read ([sparse decoding](sparse.md)); an approximation. On a GPU `now` alone, and not with `mx8`; nowhere with `relocate`, nor for models with sliding windows. `ahead` lets requests ask for `now` too",
  },
  SPANGATE_SPARSE_TOKENS: {
    value: "N",
    byDefault: "2048",
    meaning: "how many each of them chooses, and the most that a request may ask for",
  },
  SPANGATE_SPARSE_FROM: {
    value: "N",
    byDefault: "16384",
    meaning: "requests of fewer tokens, prompt and answer together, read all of them",
  },
  SPANGATE_SPARSE_SHADOW_BITS: {
    value: "BITS",
    byDefault: "4",
    meaning: "of a number of K's copy that tokens are chosen by; 4 is all there is so far",
  },
  SPANGATE_BLOCK_TOKENS: {
    value: "N",
    byDefault: "16",
    meaning: "tokens of a block of KV: a power of two from 4 to 128",
  },
  SPANGATE_STEP_TOKENS: {
    value: "N",
    byDefault: "512; 8192 on a GPU",
    meaning: "rows of one step: more is faster for long cold prompts, fewer keeps others' waits short",
  },
  SPANGATE_MAX_PREFILL_BESIDE_DECODE: {
    value: "N",
    byDefault: "128; 1024 on a GPU",
    meaning: "rows of cold prompts in a step that decodes as well",
  },
  SPANGATE_MAX_WAITING: {
    value: "N",
    byDefault: "1024",
    meaning: "requests that wait at a worker; more are refused with 503",
  },
  SPANGATE_DENSE: {
    value: "NAME",
    byDefault: "`native` with AMX or AVX-512, else `onnx`",
    meaning: "what multiplies weights on the CPU: products of our own (AMX, AVX-512, AVX2), or onnxruntime",
  },
  SPANGATE_ISA: {
    value: "NAME",
    byDefault: "the best there is",
    meaning: "`amx`, `avx512`, `avx2` or `reference`: instruction set of the kernels",
  },
  SPANGATE_DEBUG: {
    value: "0|1",
    byDefault: "0",
    meaning:
      "1: a worker derives its bookkeeping anew after each step, and ends when it contradicts what it holds; slow, for finding faults",
    isSwitch: true,
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The path of a file that holds the platform key, as an alternative to the key itself. */
export const adminKeyFile = "SPANGATE_ADMIN_KEY_FILE";

/** What others read: the program that starts the server, the loader, the exporter of traces, the command line. */
export const otherSettings = {
  [adminKeyFile]: {
    value: "FILE",
    byDefault: "none",
    meaning: "a file that holds the admin key, so that it is in no environment",
  },
  HF_TOKEN: {
    value: "TOKEN",
    byDefault: "what `hf auth login` has left",
    meaning: "for models of the hub: a token for what not everybody may load, sent to the hub's address alone",
    flag: false,
  },
  HF_HUB_CACHE: {
    value: "DIR",
    byDefault: "`hub` in `HF_HOME`",
    meaning: "the hub's cache, which other tools share; `HF_HOME` is `~/.cache/huggingface` unless it is set",
    flag: false,
  },
  HF_ENDPOINT: {
    value: "URL",
    byDefault: "`https://huggingface.co`",
    meaning: "the hub, or a mirror of it",
    flag: false,
  },
  HF_HUB_OFFLINE: {
    value: "0|1",
    byDefault: "0",
    meaning: "1: the hub is not asked; models come from its cache alone",
    flag: false,
  },
  LD_LIBRARY_PATH: {
    value: "LIST",
    byDefault: "",
    meaning: "for `cuda:N`: where `libnvrtc` and `libcublasLt` are, when the system's loader does not find them",
    flag: false,
  },
  OTEL_EXPORTER_OTLP_ENDPOINT: {
    value: "URL",
    byDefault: "off",
    meaning:
      "where traces go (OTLP/HTTP, JSON), with the other standard variables: request, grammar, retrieval, lowering, queue, prefill, first token, decode; no text, keys or salts",
    flag: false,
  },
  SPANGATE_URL: {
    value: "URL",
    byDefault: "`http://127.0.0.1:8080`",
    meaning: "for the command line: the server that its commands speak to",
    flag: false,
  },
  SPANGATE_API_KEY: {
    value: "KEY",
    byDefault: "the key of `serve --dev`",
    meaning: "for the command line: the API key that its commands send",
    flag: false,
  },
} as const satisfies Readonly<Record<string, Setting>>;
