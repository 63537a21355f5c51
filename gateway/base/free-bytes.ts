/**
 * Gives the memory of bytes back at once, which the garbage collector may not do for seconds; they are empty from then on.
 * Bytes that share their buffer with others stay.
 */
export function freeBytes(bytes: Uint8Array): void {
  if (bytes.byteLength === bytes.buffer.byteLength && bytes.buffer instanceof ArrayBuffer) bytes.buffer.transfer(0);
}
