// Sphinx's scores, except that pages with a word of the query in their title come first, above all the
// start page for a framework. Known errors have the words of messages. Records come last: they name everything.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\W+/).filter((word) => word.length > 2);
    const inTitle = title.toLowerCase().split(/\W+/).some((word) => words.includes(word));
    const isRecord = /^(CHANGELOG|CONTRIBUTING|docs\/maintainers\/.*)$/;
    const isMessage = /\S\s+\S/.test(query) && page === "docs/errors";
    const isStart = page === "docs/README" && /^(jax|keras|tensorflow)$/i.test(query.trim());
    const more = (isStart ? 60 : 0) + (inTitle ? 15 : 0) + (isMessage ? 20 : 0);
    return (score + more) / (isRecord.test(page) ? 10 : 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
