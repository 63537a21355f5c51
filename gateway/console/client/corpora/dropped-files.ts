/** What was dropped or chosen, as files with their paths: folders are read to their ends. */
export interface GivenFile {
  readonly file: File;
  /** With its folders, the names between slashes. */
  readonly path: string;
}

/** Folders within folders that are read. */
const mostLevels = 16;

/** @param most files that are looked for. @throws DOMException for what cannot be read */
export async function droppedFiles(items: DataTransferItemList, most: number): Promise<readonly GivenFile[]> {
  // The list is empty after the event, so all that is in it is taken at once.
  const given = [...items].filter(({ kind }) => kind === "file");
  const entries = given.map((item) => item.webkitGetAsEntry() ?? item.getAsFile());
  const found: GivenFile[] = [];
  for (const entry of entries) {
    if (entry instanceof File) found.push({ file: entry, path: entry.name });
    else if (entry !== null) await read(entry, found, most, 0);
  }
  return found;
}

async function read(entry: FileSystemEntry, found: GivenFile[], most: number, level: number): Promise<void> {
  if (found.length >= most || level > mostLevels) return;
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    found.push({ file, path: entry.fullPath.replace(/^\//, "") });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  for (;;) {
    // Each call gives some; none is the end.
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return;
    for (const inner of some) await read(inner, found, most, level + 1);
  }
}

export const chosenFiles = (files: FileList | null): readonly GivenFile[] =>
  [...(files ?? [])].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
