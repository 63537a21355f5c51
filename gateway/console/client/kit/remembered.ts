/** Choices of whoever sits there, kept by the browser. Nothing of a tenant is among them. */
const prefix = "spangate.";

export function remembered(name: string): string {
  try {
    return localStorage.getItem(prefix + name) ?? "";
  } catch {
    // Browsers can be told to keep nothing.
    return "";
  }
}

export function remember(name: string, value: string): void {
  try {
    localStorage.setItem(prefix + name, value);
  } catch {
    return;
  }
}
