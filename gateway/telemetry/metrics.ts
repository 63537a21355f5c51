/**
 * Counters and histograms in Prometheus' text form. Label values come from fixed sets (routes, status codes,
 * workers), never from what tenants send.
 */
import type { UsageLedger } from "../tenant/usage.ts";

export type Labels = Readonly<Record<string, string>>;

const secondsBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
/** Bucket bounds 1, 2, 5, 10, … up to 500,000 tokens, the same as vLLM's. */
const tokensBuckets = [1, 10, 100, 1_000, 10_000, 100_000].flatMap((unit) => [unit, 2 * unit, 5 * unit]);
const seriesPerMetric = 1_000;

interface Series {
  readonly labels: string;
  value: number;
  readonly buckets: number[];
}

interface Metric {
  readonly type: "counter" | "histogram";
  readonly help: string;
  /** Upper bounds of a histogram's buckets. */
  readonly bounds: readonly number[];
  readonly series: Map<string, Series>;
}

/** Receives the tokens of each ended run. Tenants are not labels of metrics, since their number has no bound. */
export type TenantUsage = Pick<UsageLedger, "add">;

export class Metrics {
  readonly tenantUsage: TenantUsage | undefined;
  readonly #metrics = new Map<string, Metric>();

  /** @param tenantUsage receives what the token counters count, by tenant */
  constructor(tenantUsage?: TenantUsage) {
    this.tenantUsage = tenantUsage;
  }

  count(name: string, help: string, labels: Labels = {}, amount = 1): void {
    const series = this.#series(name, { type: "counter", help, bounds: [] }, labels);
    if (series !== undefined) series.value += amount;
  }

  /** Adds an observation in seconds to a histogram. */
  observe(name: string, help: string, seconds: number, labels: Labels = {}): void {
    this.#observe(name, { type: "histogram", help, bounds: secondsBuckets }, seconds, labels);
  }

  /** Adds an observation in tokens to a histogram. */
  observeTokens(name: string, help: string, tokens: number, labels: Labels = {}): void {
    this.#observe(name, { type: "histogram", help, bounds: tokensBuckets }, tokens, labels);
  }

  #observe(name: string, kind: Omit<Metric, "series">, value: number, labels: Labels): void {
    const series = this.#series(name, kind, labels);
    if (series === undefined) return;
    series.value += value;
    const bucket = kind.bounds.findIndex((bound) => value <= bound);
    const index = bucket < 0 ? kind.bounds.length : bucket;
    series.buckets[index] = (series.buckets[index] ?? 0) + 1;
  }

  /** @param shared returns the labels that all series of a metric have besides their own */
  render(shared: (name: string) => Labels = () => ({})): string {
    return [...this.#metrics].map(([name, metric]) => renderMetric(name, metric, labelText(shared(name)))).join("");
  }

  #series(name: string, kind: Omit<Metric, "series">, labels: Labels): Series | undefined {
    const metric = this.#metrics.getOrInsertComputed(name, () => ({ ...kind, series: new Map() }));
    const text = labelText(labels);
    const found = metric.series.get(text);
    if (found !== undefined) return found;
    if (metric.series.size >= seriesPerMetric) return undefined;
    const made = { labels: text, value: 0, buckets: new Array<number>(kind.bounds.length + 1).fill(0) };
    metric.series.set(text, made);
    return made;
  }
}

/** One metric whose values are known now: a gauge, or a counter kept elsewhere. */
export function renderSamples(
  name: string,
  type: "gauge" | "counter",
  help: string,
  samples: readonly { readonly labels: Labels; readonly value: number }[],
): string {
  const lines = samples.map(({ labels, value }) => `${name}${braces(labelText(labels))} ${value}\n`);
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join("")}`;
}

function renderMetric(name: string, metric: Metric, shared: string): string {
  const lines = [`# HELP ${name} ${metric.help}\n# TYPE ${name} ${metric.type}\n`];
  for (const series of metric.series.values()) {
    const labels = [shared, series.labels];
    if (metric.type === "counter") lines.push(`${name}${braces(...labels)} ${series.value}\n`);
    else lines.push(renderHistogram(name, metric.bounds, series, labels));
  }
  return lines.join("");
}

function renderHistogram(name: string, bounds: readonly number[], series: Series, labels: readonly string[]): string {
  let count = 0;
  const lines = [...bounds.map(String), "+Inf"].map((bound, index) => {
    count += series.buckets[index] ?? 0;
    return `${name}_bucket${braces(...labels, `le="${bound}"`)} ${count}\n`;
  });
  return `${lines.join("")}${name}_sum${braces(...labels)} ${series.value}\n${name}_count${braces(...labels)} ${count}\n`;
}

function braces(...labels: readonly string[]): string {
  const given = labels.filter((text) => text !== "");
  return given.length === 0 ? "" : `{${given.join(",")}}`;
}

function labelText(labels: Labels): string {
  let text = "";
  for (const name of Object.keys(labels)) text += `${text === "" ? "" : ","}${name}="${escaped(labels[name] ?? "")}"`;
  return text;
}

/** Every answer asks for a dozen of these, and hardly any has a sign to escape. */
const escaped = (value: string): string =>
  /[\\"\n]/.test(value) ? value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n") : value;
