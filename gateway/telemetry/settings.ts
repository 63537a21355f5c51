/** Where traces are sent, by OpenTelemetry's standard variables. Only OTLP over HTTP in JSON is supported. */
export interface TraceSettings {
  /** Traces are posted to this URL. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly serviceName: string;
  /** Further attributes that describe this server. */
  readonly resource: Readonly<Record<string, string>>;
  /** Milliseconds that sending a batch may take. */
  readonly timeoutMs: number;
  /** The share, 0 to 1, of requests that are traced when the caller does not say whether it traces. */
  readonly ratio: number;
}

type Env = Readonly<Record<string, string | undefined>>;

/** @returns undefined: nothing is traced. @throws Error naming the variable and what is wrong with it */
export function traceSettings(env: Env): TraceSettings | undefined {
  const of = (name: string): string | undefined => env[name]?.trim() || undefined;
  const base = of("OTEL_EXPORTER_OTLP_ENDPOINT");
  const given = of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  const endpoint = given ?? (base === undefined ? undefined : `${base.replace(/\/+$/, "")}/v1/traces`);
  const off = of("OTEL_SDK_DISABLED")?.toLowerCase() === "true" || of("OTEL_TRACES_EXPORTER") === "none";
  if (endpoint === undefined || off) return undefined;
  const name = given === undefined ? "OTEL_EXPORTER_OTLP_ENDPOINT" : "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
  if (!/^https?:$/.test(URL.parse(endpoint)?.protocol ?? "")) throw new Error(`${name} must be an http or https URL`);
  for (const protocol of ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]) {
    if ((of(protocol) ?? "http/json") !== "http/json") throw new Error(`${protocol} must be http/json`);
  }
  const headers = of("OTEL_EXPORTER_OTLP_TRACES_HEADERS") ?? of("OTEL_EXPORTER_OTLP_HEADERS") ?? "";
  const { "service.name": named, ...resource } = resourceOf(of("OTEL_RESOURCE_ATTRIBUTES") ?? "");
  return {
    url: endpoint,
    headers: headersOf(headers),
    serviceName: of("OTEL_SERVICE_NAME") ?? named ?? "spangate",
    resource,
    timeoutMs: timeoutOf(of, ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]),
    ratio: ratioOf(of("OTEL_TRACES_SAMPLER") ?? "parentbased_always_on", of("OTEL_TRACES_SAMPLER_ARG") ?? "1"),
  };
}

/** Parses a list of headers: name=value,name=value, with values encoded as in a URL. */
function headersOf(list: string): Record<string, string> {
  const entries = list.split(",").filter((entry) => entry.trim() !== "");
  return Object.fromEntries(
    entries.map((entry) => {
      const [name = "", ...value] = entry.split("=");
      try {
        new Headers().set(name.trim(), decodeURIComponent(value.join("=").trim()));
        return [name.trim(), decodeURIComponent(value.join("=").trim())];
      } catch {
        throw new Error("OTEL_EXPORTER_OTLP_HEADERS must be name=value pairs with commas between");
      }
    }),
  );
}

/** Parses a list of the same form whose names need not be valid header names. */
function resourceOf(list: string): Record<string, string> {
  const entries = list.split(",").filter((entry) => entry.trim() !== "");
  return Object.fromEntries(
    entries.map((entry) => {
      const [, name = "", value = ""] = /^\s*([^=\s]+)\s*=(.*)$/.exec(entry) ?? [];
      try {
        if (name !== "") return [name, decodeURIComponent(value.trim())];
      } catch {
        // The error is thrown below.
      }
      throw new Error("OTEL_RESOURCE_ATTRIBUTES must be name=value pairs with commas between");
    }),
  );
}

const maxTimeoutMs = 600_000;

/** @param names the first variable that is set counts */
function timeoutOf(of: (name: string) => string | undefined, names: readonly string[]): number {
  const name = names.find((one) => of(one) !== undefined);
  if (name === undefined) return 10_000;
  const text = of(name) ?? "";
  const timeoutMs = Number(text);
  if (/^\d+$/.test(text) && timeoutMs >= 1 && timeoutMs <= maxTimeoutMs) return timeoutMs;
  throw new Error(`${name} must be milliseconds from 1 to ${maxTimeoutMs}`);
}

function ratioOf(sampler: string, argument: string): number {
  if (sampler === "parentbased_always_on") return 1;
  if (sampler === "parentbased_always_off") return 0;
  if (sampler !== "parentbased_traceidratio") {
    throw new Error(
      "OTEL_TRACES_SAMPLER must be parentbased_always_on, parentbased_always_off or parentbased_traceidratio",
    );
  }
  const ratio = Number(argument);
  if (!(ratio >= 0 && ratio <= 1)) throw new Error("OTEL_TRACES_SAMPLER_ARG must be from 0 to 1");
  return ratio;
}
