/** Numbers and times as people read them. */
const locale = "en";
const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const one = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
// Swedish writes dates as ISO 8601 has them: 2026-12-24 18:00:00
const moment = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });
const day = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeZone: "UTC" });
const relative = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });

/** What stands for a value that is not there. */
export const nothing = "–";

type Given = number | null | undefined;
const given = (value: Given, format: (value: number) => string): string =>
  value === null || value === undefined || Number.isNaN(value) ? nothing : format(value);

/** 1,204 */
export const count = (value: Given): string => given(value, (known) => whole.format(known));
/** "1 fragment", "1,204 fragments"; for words whose plural has an s. */
export const counted = (value: number, word: string): string => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const tierWords: Readonly<Record<string, string>> = { device: "pool", host: "memory", disk: "files", s3: "bucket" };
/** Where KV lies, in a word. */
export const tierWord = (tier: string): string => tierWords[tier] ?? tier;
/** 1.2K */
export const shortCount = (value: Given): string => given(value, (known) => short.format(known));
/** @param part 0 to 1 */
export const percent = (part: Given): string => given(part, (known) => `${one.format(known * 100)} %`);

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
/** 1.5 GiB */
export const bytes = (value: Given): string =>
  given(value, (known) => {
    const power = known < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(known) / 10));
    return `${one.format(known / 2 ** (10 * power))} ${units[power]}`;
  });

/** A duration: 0.4 ms, 31 ms, 2.5 s, 3 min 20 s */
export const duration = (ms: Given): string =>
  given(ms, (known) => {
    if (known < 10) return `${one.format(known)} ms`;
    if (known < 1_000) return `${whole.format(known)} ms`;
    if (known < 60_000) return `${one.format(known / 1_000)} s`;
    return `${Math.floor(known / 60_000)} min ${Math.floor((known % 60_000) / 1_000)} s`;
  });

/** 2026-12-24 18:00:00, in the time of whoever looks. @param unixS Unix time in seconds */
export const time = (unixS: Given): string => given(unixS, (known) => moment.format(known * 1_000));
/** @param isoDay `2026-12-24` */
export const dayText = (isoDay: string): string => day.format(Date.parse(`${isoDay}T00:00:00Z`));

const steps: readonly (readonly [unit: Intl.RelativeTimeFormatUnit, seconds: number])[] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

/** "3 minutes ago", "in 2 days". @param unixS Unix time in seconds */
export const ago = (unixS: Given, nowMs = Date.now()): string =>
  given(unixS, (known) => {
    const seconds = known - nowMs / 1_000;
    const [unit, size] = steps.find(([, least]) => Math.abs(seconds) >= least) ?? (["second", 1] as const);
    return relative.format(Math.trunc(seconds / size), unit);
  });
