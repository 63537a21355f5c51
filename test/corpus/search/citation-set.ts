/**
 * Answers written by hand, and for each of their sentences what in the documents it rests on: the beginning of that
 * sentence, or null where it rests on none. Half were written the way models answer (paraphrased, joined, refused,
 * invented), before the bar of citations was chosen on them.
 */
export interface CitationCase {
  readonly documents: readonly string[];
  readonly question: string;
  readonly answer: readonly (readonly [sentence: string, from: string | null])[];
}

const staff = [
  "# Staff\n\nMira Holt leads the bakery. The extension of Mira Holt is 4821. She lives in Harrowgate.",
  "Jon Vale works in accounting since 2014. His extension is 3057. Jon Vale lives in Fairhaven and has two dogs.",
  "Ada Quill is the night guard. The extension of Ada Quill is 7719. She lives in Fairhaven too.",
];
const warranty = [
  "The warranty lasts 24 months from the day of delivery. It covers defects of material and workmanship. Scratches and worn batteries are not covered. Claims are made in writing to the service centre in Lyon.",
  "Returns are accepted within 30 days. The buyer pays for the return shipment, except when the device arrived damaged. Refunds reach the bank account within 14 days of the return's arrival.",
];
const reactor = [
  "The reactor is cooled by molten lead. Its outlet temperature is 540 °C, and the primary circuit works at atmospheric pressure. A passive system removes decay heat for 72 hours without electricity.",
  "Construction began in June 2021 near Seversk. The unit has an electrical output of 300 MW. Fuel is a mixed nitride of uranium and plutonium.",
];
const lease = [
  "§ 4 Die Miete beträgt 1.250 Euro im Monat und ist bis zum dritten Werktag zu zahlen. § 5 Die Kaution beträgt drei Monatsmieten. Sie wird verzinst angelegt.",
  "§ 9 Die Kündigungsfrist beträgt drei Monate zum Monatsende. Haustiere sind nach Absprache mit dem Vermieter erlaubt. Das Treppenhaus wird wöchentlich im Wechsel gereinigt.",
];
const parts = [
  "- item: Hex bolt M8 | stock: 1,250 | price: 0.14\n- item: Hex bolt M10 | stock: 300 | price: 0.21\n- item: Washer M8 | stock: 9,000 | price: 0.02\n- item: Wing nut M6 | stock: 75 | price: 0.33",
];
const release = [
  "## Version 2.4\n\nThe scheduler now retries failed jobs three times. Logs are rotated daily. Support for Python 3.8 was removed.",
  "## Version 2.5\n\nJobs can be paused and resumed. The default timeout was raised from 30 to 90 seconds. Metrics are exported in the OpenMetrics format.",
];
const history = [
  "The lighthouse was built in 1873 by Elias Marr after the wreck of the brig Corona. Its lamp burned whale oil until 1902, when paraffin replaced it. The keeper's cottage burned down in 1931.",
  "In 1958 the light was automated, and the last keeper, Ruth Penrose, left the island. Since 1994 a trust has opened the tower to visitors each summer.",
];
const tokyo = [
  "東京支店の営業時間は午前九時から午後六時までです。日曜日は休業します。大阪支店は土曜日も営業しています。",
];
const medical = [
  "Adults take one tablet of 50 mg twice a day, with food. The dose is halved for patients with impaired kidneys. Do not take it together with grapefruit juice. Common side effects are nausea and dizziness.",
  "Store below 25 °C in the original package. Do not use after the expiry date. Keep out of the reach of children.",
];

export const citationSet: readonly CitationCase[] = [
  {
    documents: staff,
    question: "What is the extension of Jon Vale?",
    answer: [["The extension of Jon Vale is 3057.", "His extension is 3057"]],
  },
  {
    documents: staff,
    question: "What is the extension of Ada Quill?",
    answer: [["7719", "The extension of Ada Quill"]],
  },
  {
    documents: staff,
    question: "Where does Jon Vale live, and since when does he work here?",
    answer: [
      ["Jon Vale lives in Fairhaven. ", "Jon Vale lives in Fairhaven"],
      ["He has worked in accounting since 2014.", "Jon Vale works in accounting"],
    ],
  },
  {
    documents: staff,
    question: "What is the extension of Tom Brack?",
    answer: [
      ["The documents do not say what the extension of Tom Brack is. ", null],
      ["Please ask the reception for help.", null],
    ],
  },
  { documents: staff, question: "What is the extension of Mira Holt?", answer: [["It is 4822.", null]] },
  {
    documents: warranty,
    question: "How long is the warranty, and are scratches covered?",
    answer: [
      ["The warranty lasts for 24 months after delivery. ", "The warranty lasts 24 months"],
      ["Scratches are not covered. ", "Scratches and worn batteries"],
      ["I hope this helps!", null],
    ],
  },
  {
    documents: warranty,
    question: "Who pays when I send the device back?",
    answer: [
      ["You, as the buyer, pay for the return shipment unless the device arrived damaged. ", "The buyer pays"],
      ["You get the refund on your bank account within 14 days. ", "Refunds reach"],
      ["Express delivery is available for an additional fee of 19 Euro.", null],
    ],
  },
  {
    documents: reactor,
    question: "How is the reactor cooled and what happens in a blackout?",
    answer: [
      ["It is cooled by molten lead. ", "The reactor is cooled"],
      ["Without electricity, a passive system removes the decay heat for 72 hours. ", "A passive system"],
      ["This makes it safer than older designs in many respects.", null],
    ],
  },
  {
    documents: reactor,
    question: "Summarize the project.",
    answer: [
      ["Building started in June 2021 near Seversk. ", "Construction began"],
      ["Its electrical output is 300 MW. ", "The unit has"],
      ["The fuel is a nitride of uranium and plutonium. ", "Fuel is a mixed"],
      ["Commercial operation is planned for 2028.", null],
    ],
  },
  {
    documents: lease,
    question: "Wie hoch ist die Miete, und wie lange ist die Kündigungsfrist?",
    answer: [
      ["Die Miete beträgt 1250 Euro monatlich. ", "§ 4 Die Miete"],
      ["Die Kündigungsfrist beträgt drei Monate. ", "§ 9 Die Kündigungsfrist"],
      ["Weitere Angaben enthalten die Unterlagen leider nicht.", null],
    ],
  },
  {
    documents: lease,
    question: "Darf ich einen Hund halten?",
    answer: [
      ["Haustiere sind erlaubt, wenn der Vermieter zustimmt. ", "Haustiere sind nach"],
      ["Eine Gartennutzung ist nicht vorgesehen.", null],
    ],
  },
  {
    documents: parts,
    question: "How many M10 bolts are there, and what do washers cost?",
    answer: [
      ["There are 300 hex bolts M10 in stock. ", "item: Hex bolt M10"],
      ["A washer M8 costs 0.02.", "item: Washer M8"],
    ],
  },
  { documents: parts, question: "How many M8 bolts are in stock?", answer: [["1250", "item: Hex bolt M8"]] },
  {
    documents: release,
    question: "What changed?",
    answer: [
      ["- Failed jobs are now retried three times by the scheduler.\n", "The scheduler now retries"],
      ["- Python 3.8 is no longer supported.\n", "Support for Python 3.8"],
      ["- The default timeout is 90 seconds instead of 30.\n", "The default timeout"],
      ["- The user interface got a dark theme.", null],
    ],
  },
  {
    documents: release,
    question: "Can I pause a job?",
    answer: [["Yes, jobs can be paused and resumed since version 2.5.", "Jobs can be paused"]],
  },
  {
    documents: history,
    question: "Tell me about the lighthouse.",
    answer: [
      ["Elias Marr built the lighthouse in 1873, after the brig Corona was wrecked. ", "The lighthouse was built"],
      ["Paraffin replaced whale oil in 1902. ", "Its lamp burned"],
      ["The last keeper was Ruth Penrose, who left when the light was automated in 1958. ", "In 1958 the light"],
      ["Today it is one of the most beautiful places on the coast.", null],
    ],
  },
  {
    documents: history,
    question: "Who was the last keeper?",
    answer: [["Ruth Penrose", "In 1958 the light"]],
  },
  {
    documents: history,
    question: "When was the lighthouse built?",
    answer: [["The lighthouse was built in 1837.", null]],
  },
  {
    documents: tokyo,
    question: "東京支店はいつ休みですか。",
    answer: [
      ["東京支店は日曜日に休業します。", "日曜日は休業"],
      ["詳しくは電話でお問い合わせください。", null],
    ],
  },
  {
    documents: medical,
    question: "How do I take it, and with kidney problems?",
    answer: [
      ["Adults take one 50 mg tablet twice daily with food. ", "Adults take one tablet"],
      ["With impaired kidneys the dose is halved. ", "The dose is halved"],
      ["Avoid grapefruit juice. ", "Do not take it together"],
      ["Always ask your doctor or pharmacist before you change anything.", null],
    ],
  },
  {
    documents: medical,
    question: "How should I store it?",
    answer: [
      ["Store it in the original package, below 25 °C, away from children. ", "Store below 25"],
      ["It may cause nausea and dizziness.", "Common side effects"],
    ],
  },
  // Of the same matter, but no sentence of the documents says it.
  {
    documents: staff,
    question: "Tell me about the staff.",
    answer: [
      ["Jon Vale enjoys long walks with his family. ", null],
      ["Mira Holt is known for her bread. ", null],
      ["The night guard has two dogs as well.", null],
    ],
  },
  {
    documents: warranty,
    question: "What about the warranty?",
    answer: [
      ["The warranty can be extended against a fee. ", null],
      ["The service centre in Lyon is closed on public holidays. ", null],
      ["The buyer may choose another device instead of a refund. ", null],
      ["It does not cover water damage, theft, or loss of the device.", null],
    ],
  },
  {
    documents: reactor,
    question: "What are the prospects?",
    answer: [
      ["The reactor is expected to be exported to several countries. ", null],
      ["Lead does not react with water or air, unlike sodium. ", null],
      ["The electrical grid near Seversk is being extended for it.", null],
    ],
  },
  {
    documents: release,
    question: "What else is new?",
    answer: [
      ["The scheduler has got a new web interface. ", null],
      ["Metrics can be shown in a dashboard now. ", null],
      ["Jobs run in containers by default.", null],
    ],
  },
  {
    documents: history,
    question: "What became of the tower?",
    answer: [
      ["The tower has a small restaurant for visitors. ", null],
      ["The keeper's family had lived in the cottage with six children.", null],
    ],
  },
  {
    documents: medical,
    question: "Anything else?",
    answer: [
      ["Grapefruit juice contains much vitamin C. ", null],
      ["Patients with diabetes should measure their blood sugar more often. ", null],
      ["Children under twelve must not take the tablet.", null],
    ],
  },
];
