/** `format` of strings, as patterns: the formats of JSON schema that have one. */

const monthDays = [
  "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])",
  "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)",
  "02-(?:0[1-9]|1\\d|2[0-8])",
].join("|");
const leapYears = "\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00";
const date = `(?:\\d{4}-(?:${monthDays})|(?:${leapYears})-02-29)`;
const time = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
const byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const uriSign = "(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";

export const formats: Readonly<Record<string, string>> = {
  date: `^${date}$`,
  time: `^${time}$`,
  "date-time": `^${date}T${time}$`,
  email: `^[A-Za-z0-9_'+-]+(?:\\.[A-Za-z0-9_'+-]+)*@(?:${label}\\.)+[A-Za-z]{2,24}$`,
  hostname: `^${label}(?:\\.${label})*$`,
  ipv4: `^${byte}(?:\\.${byte}){3}$`,
  uuid: "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
  uri: `^[A-Za-z][A-Za-z0-9+.-]{0,30}:${uriSign}+$`,
};
