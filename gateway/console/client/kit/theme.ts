/** Light or dark: the system's choice unless another was made here. */
import { signal } from "@preact/signals";
import { remember, remembered } from "./remembered.ts";

export const themes = ["system", "light", "dark"] as const;
export type Theme = (typeof themes)[number];

const isTheme = (text: string): text is Theme => themes.some((each) => each === text);
const stored = remembered("theme");

export const theme = signal<Theme>(isTheme(stored) ? stored : "system");

export function setTheme(wanted: Theme): void {
  theme.value = wanted;
  remember("theme", wanted);
  showTheme();
}

/** What the system asks for now; it changes while somebody looks, as at dusk. */
const systemDark = matchMedia("(prefers-color-scheme: dark)");
export const isSystemDark = signal(systemDark.matches);
systemDark.addEventListener("change", ({ matches }) => {
  isSystemDark.value = matches;
});

/** The style sheet's colours follow this attribute. */
export function showTheme(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
