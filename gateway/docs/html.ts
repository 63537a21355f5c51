/** HTML that is written by hand: every text that comes from elsewhere goes through `escaped`. */

export const escaped = (text: string): string => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** End of a link to a heading, as GitHub makes it: `The way of a salt` is `the-way-of-a-salt`. */
export const anchorOf = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, "")
    .replaceAll(" ", "-");
