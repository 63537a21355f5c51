/** The program of a thread that searches. */
import { serveTasks } from "../../threads/serve.ts";
import { searchTasks } from "./rank.ts";

serveTasks(searchTasks());
