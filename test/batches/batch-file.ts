/** Files of lines for batches, and waiting for what becomes of them. */
export const endpoint = "/v1/chat/completions";

export const linesOf = (count: number) =>
  Array.from({ length: count }, (_, i) =>
    JSON.stringify({ custom_id: `line-${i}`, method: "POST", url: endpoint, body: { id: `line-${i}` } }),
  ).join("\n");

export const until = async (isSo: () => boolean): Promise<void> => {
  while (!isSo()) await Bun.sleep(1);
};
