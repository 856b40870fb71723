// Order of the search's results: headings that have the words that were asked for come first, and pages for users before
// records of decisions. Sphinx gives a result 15 for a word of a heading and 5 for a word of the text, and sorts equal
// ones by their names, so that each record, whose name begins with a number, would come first.
const HEADING_BONUS = 20;
const RECORD_MALUS = 12;
const RECORDS = /^(decisions\/|files\/|changelog$|contributing$)/;

var Scorer = {
  score: ([docname, , , , score, , kind]) =>
    score + (kind === "title" ? HEADING_BONUS : 0) - (RECORDS.test(docname) ? RECORD_MALUS : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
