/** Hostile heads of requests: request lines, header names, values and counts, credentials, framing of bodies. */

import { anyCodePoints } from "../support/code-points.ts";
import { fc } from "../support/fast-check.ts";
import { injections } from "./values.ts";

export interface HostileHead {
  /** Latin-1: a character is a byte. `{key}` stands for the caller's API key. */
  readonly lines: readonly string[];
  readonly lineBreak: string;
  readonly body: string;
  /** The bytes end before the request does, or may: no answer is needed. */
  readonly mayWait: boolean;
}

/** In Latin-1 terms: what is above it, as the bytes of its UTF-8. */
const bytesText = (text: string): string => Buffer.from(text.toWellFormed()).toString("latin1");
const anyBytes = anyCodePoints({ maxLength: 60 }).map(bytesText);
const printable = fc.string({ unit: "grapheme-ascii", maxLength: 60 });

const methods = fc.oneof(
  { weight: 20, arbitrary: fc.constantFrom("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS") },
  {
    weight: 3,
    arbitrary: fc.constantFrom("TRACE", "CONNECT", "PRI", "get", "GE T", "", "G\u0000", "X".repeat(300), "QUERY"),
  },
);

const strangeTargets: readonly string[] = [
  ...[
    "/v1/files/../tenants",
    "/v1/files/..%2f..%2fadmin%2fv1%2ftenants",
    "//v1//files",
    "/v1/files/%00",
    "/v1/files/%",
  ],
  ...[
    "/v1/files/%zz",
    "/v1/files?limit=%ff",
    "/v1/files?limit=1&limit=2",
    "/v1/files?%5b%5d=1",
    "*",
    "",
    "/",
    "v1/files",
  ],
  ...[
    "http://127.0.0.1/v1/files",
    "http://evil.example/v1/files",
    "/v1/files#x",
    "/v1/files;a=b",
    "/V1/FILES",
    "/v1/files/",
  ],
  ...[
    "/admin/v1/tenants/..;/health",
    "/health/../metrics",
    "/%61dmin/v1/tenants",
    "/v1/models/%e2%80%ae",
    "\\v1\\files",
  ],
  ...[
    "/docs?<script>",
    "/openapi.json?a=\u0001",
    `/v1/files/${"a".repeat(5_000)}`,
    `/v1/files?${"a=b&".repeat(1_500)}`,
  ],
];
const injected = fc.constantFrom(...injections).map((text) => bytesText(text));
const target = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom("/v1/files", "/v1/models", "/health", "/v1/chat/completions", "/tokenize") },
  { weight: 5, arbitrary: fc.constantFrom(...strangeTargets) },
  { weight: 2, arbitrary: injected.map((text) => `/v1/files/${encodeURIComponent(text)}`) },
  { weight: 1, arbitrary: anyBytes.map((text) => `/v1/files/${text}`) },
);

const credentials = fc.oneof(
  { weight: 8, arbitrary: fc.constant("Bearer {key}") },
  {
    weight: 8,
    arbitrary: fc.constantFrom(
      ...[
        "",
        "Bearer",
        "Bearer ",
        "bearer {key}",
        "Bearer  {key}",
        "Basic {key}",
        "Bearer {key} x",
        "{key}",
        "Bearer {key}\t",
      ],
      ...[
        "Bearer {key},Bearer x",
        `Bearer ${"k".repeat(257)}`,
        `Bearer ${"k".repeat(8_000)}`,
        "Bearer \u00e9",
        "Bearer \u0000",
      ],
      ...[
        'Digest username="a"',
        "Bearer undefined",
        "Bearer null",
        "Bearer __proto__",
        "Bearer sk-",
        "Bearer {key}\u00a0",
      ],
    ),
  },
  { weight: 4, arbitrary: injected.map((text) => `Bearer ${text}`) },
  { weight: 2, arbitrary: anyBytes.map((text) => `Bearer ${text}`) },
);

const knownNames = [
  ...["x-api-key", "x-request-id", "content-type", "content-encoding", "accept", "accept-encoding", "host", "cookie"],
  ...["last-event-id", "if-none-match", "if-modified-since", "range", "origin", "referer", "user-agent", "forwarded"],
  ...["x-forwarded-for", "x-forwarded-host", "x-original-url", "x-rewrite-url", "x-http-method-override", "te", "via"],
  ...["connection", "upgrade", "sec-websocket-key", "expect", "proxy-authorization", "anthropic-version", "trailer"],
  ...["__proto__", "constructor", "x-stainless-retry-count", "traceparent", "baggage", "idempotency-key", "date"],
];
const strangeNames = ["", " x", "x y", "x:y", "x\u0000", "é", "(x)", "x".repeat(300), "X-Request-Id", "authorization "];
const headerName = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom(...knownNames) },
  { weight: 1, arbitrary: fc.constantFrom(...strangeNames) },
);
const headerValue = fc.oneof(
  { weight: 4, arbitrary: printable },
  { weight: 3, arbitrary: injected },
  { weight: 2, arbitrary: anyBytes },
  {
    weight: 3,
    arbitrary: fc.constantFrom(
      ...[
        "",
        "close",
        "keep-alive",
        "upgrade",
        "websocket",
        "h2c",
        "100-continue",
        "gzip",
        "bytes=0-1,5-",
        "*",
        "0",
        "-1",
      ],
      ...[
        "application/json",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "99999999999999999999",
        "a".repeat(3_000),
      ],
    ),
  },
);
const header = fc.tuple(headerName, headerValue).map(([name, value]) => `${name}: ${value}`);

interface Framing {
  readonly lines: readonly string[];
  readonly body: string;
  readonly mayWait: boolean;
}

const json = '{"model":"fake-model","prompt":"a"}';
const length = (value: string | number): string => `content-length: ${value}`;
const chunked = "transfer-encoding: chunked";
const chunks = `${json.length.toString(16)}\r\n${json}\r\n0\r\n\r\n`;
const framings: readonly Framing[] = [
  { lines: [length(json.length)], body: json, mayWait: false },
  { lines: [chunked], body: chunks, mayWait: false },
  { lines: [], body: "", mayWait: false },
  { lines: [length(0)], body: "", mayWait: false },
  { lines: [length(json.length + 10)], body: json, mayWait: true },
  { lines: [length(3)], body: json, mayWait: true },
  { lines: [], body: json, mayWait: true },
  ...["-1", "+5", "0x10", "1e3", "99999999999999999999", " ", "abc", "5, 5", "5;5", "9007199254740993"].map(
    (value) => ({
      lines: [length(value)],
      body: json,
      mayWait: true,
    }),
  ),
  { lines: [length(json.length), length(3)], body: json, mayWait: true },
  { lines: [length(json.length), chunked], body: chunks, mayWait: true },
  { lines: ["transfer-encoding: gzip, chunked"], body: chunks, mayWait: true },
  { lines: ["transfer-encoding: xchunked"], body: chunks, mayWait: true },
  { lines: ["transfer-encoding : chunked"], body: chunks, mayWait: true },
  { lines: [chunked, chunked], body: chunks, mayWait: true },
  ...[
    "zz\r\n",
    "ffffffffffffffffff\r\nx",
    "-1\r\n\r\n",
    '5;ext="a"\r\nhello\r\n0\r\n\r\n',
    "5\nhello\n0\n\n",
    "1\r\nab\r\n0\r\n\r\n",
  ].map((body) => ({ lines: [chunked], body, mayWait: true })),
  { lines: [chunked], body: `${chunks.slice(0, -2)}x: ${"y".repeat(3_000)}\r\n\r\n`, mayWait: true },
];

export const hostileHead: fc.Arbitrary<HostileHead> = fc
  .record({
    method: methods,
    target,
    version: fc.oneof(
      { weight: 20, arbitrary: fc.constant("HTTP/1.1") },
      {
        weight: 1,
        arbitrary: fc.constantFrom("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 x", "", "http/1.1", "HTTP/9.9"),
      },
    ),
    credentials: fc.array(credentials, { minLength: 0, maxLength: 2 }),
    hosts: fc.oneof(
      { weight: 12, arbitrary: fc.constant(["host: a"]) },
      { weight: 1, arbitrary: fc.constantFrom([], ["host: a", "host: b"], ["host:"], ["host: a/b@c"], [" host: a"]) },
    ),
    headers: fc.array(header, { maxLength: 4 }),
    count: fc.oneof(
      { weight: 20, arbitrary: fc.constant(0) },
      { weight: 1, arbitrary: fc.constantFrom(50, 99, 101, 300, 2_000) },
    ),
    framing: fc.oneof(
      { weight: 8, arbitrary: fc.constant(framings[0] as Framing) },
      { weight: 8, arbitrary: fc.constant(framings[2] as Framing) },
      { weight: 6, arbitrary: fc.constantFrom(...framings) },
    ),
    lineBreak: fc.oneof(
      { weight: 30, arbitrary: fc.constant("\r\n") },
      { weight: 1, arbitrary: fc.constantFrom("\n", "\r", "\n\r", "\r\n ") },
    ),
    fold: fc.oneof(
      { weight: 30, arbitrary: fc.constant<string[]>([]) },
      { weight: 1, arbitrary: fc.constant(["x: a", "\tb", " c: d"]) },
    ),
  })
  .map(({ method, target: place, version, framing, ...rest }) => {
    const many = Array.from({ length: rest.count }, (_, index) => `x-${index}: ${index}`);
    const lines = [
      `${method} ${place} ${version}`,
      ...rest.hosts,
      ...rest.credentials.map((value) => `authorization: ${value}`),
      "content-type: application/json",
      ...framing.lines,
      ...rest.headers,
      ...rest.fold,
      ...many,
    ];
    return { lines, lineBreak: rest.lineBreak, body: framing.body, mayWait: isUnclear(lines, framing, rest.lineBreak) };
  });

/** Where the request ends is a matter of opinion. */
function isUnclear(lines: readonly string[], framing: Framing, lineBreak: string): boolean {
  const opinions = lines.filter((line) => /[\r\n\0]|^\s|^\S*\s+:|^[^:]*$|^(?:expect|upgrade|connection):/i.test(line));
  return (
    framing.mayWait || lineBreak !== "\r\n" || opinions.length > 1 || !/^[A-Z]+ \S+ HTTP\/1\.1$/.test(lines[0] ?? "")
  );
}
