/** The text of the n-th document: 1 to 120 sentences, no two documents alike. */
export function crashText(number: number): string {
  const sentences = 1 + ((number * 37) % 120);
  return Array.from({ length: sentences }, (_, i) => `Document ${number} says in line ${i} a few words.`).join(" ");
}
