/** Where files and folders are dropped, or chosen. */
import { useRef, useState } from "preact/hooks";
import { complain } from "../kit/feedback.tsx";
import { chosenFiles, droppedFiles, type GivenFile } from "./dropped-files.ts";
import { mostFiles } from "./uploads.ts";

export function DropZone({ onFiles }: { readonly onFiles: (files: readonly GivenFile[]) => void }) {
  const [isOver, setOver] = useState(false);
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const drop = async (event: DragEvent): Promise<void> => {
    event.preventDefault();
    setOver(false);
    const { dataTransfer } = event;
    if (dataTransfer === null) return;
    await droppedFiles(dataTransfer.items, mostFiles + 1).then(onFiles, complain);
  };
  const take = (input: HTMLInputElement): void => {
    onFiles(chosenFiles(input.files));
    input.value = "";
  };
  return (
    // Dropping is one way; the buttons within are the other, and reached by keyboard.
    <section
      class={isOver ? "drop-zone over" : "drop-zone"}
      aria-label="Add files"
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => void drop(event)}
    >
      <p>Drop files or folders here</p>
      <div class="actions">
        <button type="button" onClick={() => files.current?.click()}>
          Choose files
        </button>
        <button type="button" onClick={() => folder.current?.click()}>
          Choose a folder
        </button>
      </div>
      <p class="soft">Text, Markdown, HTML, PDF, CSV, code, and documents of office programs, up to 32 MiB each.</p>
      <input
        ref={files}
        type="file"
        multiple
        hidden
        aria-label="Files"
        onChange={({ currentTarget }) => take(currentTarget)}
      />
      <input
        ref={folder}
        type="file"
        hidden
        aria-label="Folder"
        {...{ webkitdirectory: true }}
        onChange={({ currentTarget }) => take(currentTarget)}
      />
    </section>
  );
}
