/** PDF documents written object by object, as no program writes them. */
export const bytesOf = (text: string): Uint8Array => Buffer.from(text, "latin1");

/** Objects by number, without a table of where they are: readers look for them. */
export function pdfObjects(objects: Readonly<Record<number, string>>, trailer = "/Root 1 0 R"): Uint8Array {
  const written = Object.entries(objects).map(([number, object]) => `${number} 0 obj\n${object}\nendobj\n`);
  return bytesOf(`%PDF-1.7\n${written.join("")}trailer\n<< /Size 99 ${trailer} >>\nstartxref\n0\n%%EOF\n`);
}

export const stream = (dictionary: string, content: string): string =>
  `<< ${dictionary} /Length ${content.length} >>\nstream\n${content}\nendstream`;
export const catalog = "<< /Type /Catalog /Pages 2 0 R >>";
export const page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources 5 0 R >>";
