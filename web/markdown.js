// Markdown of models as nodes. What they write is never taken as markup: HTML stays text, nothing is loaded, and links
// lead to http and https only. Every search that fails is remembered, so that no text takes longer than its length asks.
'use strict';

const markdown = (() => {
  const {element} = dom;
  const kMaxDepth = 6;  // of lists, quotes and emphasis inside one another; beyond it they are text
  const kMaxLabel = 300;
  const kMaxUrl = 2000;
  const kMarks = [['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];
  const kFence = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
  const kHeading = /^ {0,3}(#{1,6}) +(.*)$/;
  const kRule = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
  const kItem = /^( {0,12})([-*+]|\d{1,9}[.)])( +)(.*)$/;

  function safeUrl(text) {
    if (text.length > kMaxUrl || !URL.canParse(text)) return null;
    const url = new URL(text);
    return ['http:', 'https:'].includes(url.protocol) ? url.href : null;
  }

  const link = (url, children) =>
      element('a', {href: url, target: '_blank', rel: 'noopener noreferrer nofollow'}, children);

  const isBlank = (character) => character === undefined || /\s/.test(character);
  const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);

  // Turns one run of text into nodes.
  class Inline {
    constructor(text, depth) {
      this.text = text;
      this.depth = depth;
      this.at = 0;
      this.plain = '';
      this.nodes = [];
      this.missing = new Set();  // marks without a partner in the rest of the text
    }

    parse() {
      while (this.at < this.text.length) {
        if (!this.special()) this.plain += this.text[this.at++];
      }
      this.flush();
      return this.nodes;
    }

    flush() {
      if (this.plain) this.nodes.push(this.plain);
      this.plain = '';
    }

    // Takes over a node that ends before `end`.
    put(node, end) {
      this.flush();
      this.nodes.push(node);
      this.at = end;
      return true;
    }

    special() {
      switch (this.text[this.at]) {
        case '\\': return this.escape();
        case '\n': return this.put(element('br'), this.at + 1);
        case '`': return this.code();
        case '[': return this.labelled(this.at, '');
        case '!': return this.text[this.at + 1] === '[' && this.labelled(this.at + 1, 'image: ');
        case '<': return this.bracketedUrl();
        case 'h': return this.bareUrl();
        case '*': case '_': case '~': return this.emphasis();
        default: return false;
      }
    }

    escape() {
      if (!/[!-/:-@[-`{-~]/.test(this.text[this.at + 1] || '')) return false;
      this.plain += this.text[this.at + 1];
      this.at += 2;
      return true;
    }

    // Backticks that none of the same number closes are text.
    code() {
      let begin = this.at;
      while (this.text[begin] === '`') ++begin;
      const fence = this.text.slice(this.at, begin);
      let end = this.missing.has(fence) ? -1 : this.text.indexOf(fence, begin);
      while (end >= 0 && this.text[end + fence.length] === '`') {
        let next = end;
        while (this.text[next] === '`') ++next;
        end = this.text.indexOf(fence, next);
      }
      if (end < 0) {
        this.missing.add(fence);
        this.plain += fence;
        this.at = begin;
        return true;
      }
      return this.put(element('code', {}, this.text.slice(begin, end).replaceAll('\n', ' ')), end + fence.length);
    }

    // [label](url); an image becomes a link, since nothing is loaded from elsewhere.
    labelled(begin, prefix) {
      const length = this.text.slice(begin, begin + kMaxLabel).indexOf('](');
      if (length < 0) return false;
      const middle = begin + length;
      const rest = this.text.slice(middle + 2, middle + 2 + kMaxUrl);
      const found = /^<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)?)>?(?:\s+"[^"\n]*")?\)/.exec(rest);
      const url = found && safeUrl(found[1]);
      if (!url) return false;
      const label = this.text.slice(begin + 1, middle);
      return this.put(link(url, [prefix + label || url]), middle + 2 + found[0].length);
    }

    bracketedUrl() {
      const found = /^<(https?:\/\/[^\s<>]+)>/.exec(this.text.slice(this.at, this.at + kMaxUrl));
      const url = found && safeUrl(found[1]);
      return url ? this.put(link(url, [found[1]]), this.at + found[0].length) : false;
    }

    bareUrl() {
      if (isWord(this.text[this.at - 1]) || !this.text.startsWith('http', this.at)) return false;
      const found = /^https?:\/\/[^\s<>"'`*]*[^\s<>"'`*.,;:!?)\]}]/.exec(this.text.slice(this.at, this.at + kMaxUrl));
      const url = found && safeUrl(found[0]);
      return url ? this.put(link(url, [found[0]]), this.at + found[0].length) : false;
    }

    emphasis() {
      const [mark, tag] = kMarks.find(([text]) => this.text.startsWith(text, this.at)) || [];
      if (!mark || this.depth >= kMaxDepth || this.missing.has(mark)) return this.asText(mark);
      const begin = this.at + mark.length;
      const isInWord = mark[0] === '_' && isWord(this.text[this.at - 1]);
      if (isBlank(this.text[begin]) || isInWord) return this.asText(mark);
      const end = this.closing(mark, begin);
      if (end < 0) {
        this.missing.add(mark);
        return this.asText(mark);
      }
      const inside = new Inline(this.text.slice(begin, end), this.depth + 1).parse();
      return this.put(element(tag, {}, inside), end + mark.length);
    }

    asText(mark) {
      this.plain += mark || this.text[this.at];
      this.at += mark ? mark.length : 1;
      return true;
    }

    closing(mark, begin) {
      for (let end = this.text.indexOf(mark, begin); end >= 0; end = this.text.indexOf(mark, end + 1)) {
        const after = this.text[end + mark.length];
        if (mark.length === 1 && after === mark) {
          ++end;  // half of a double one
        } else if (end > begin && !isBlank(this.text[end - 1]) && !(mark[0] === '_' && isWord(after))) {
          return end;
        }
      }
      return -1;
    }
  }

  const inline = (text) => new Inline(text, 0).parse();

  const cellsOf = (line) => line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((cell) => cell.trim());

  function isTable(lines, at) {
    if (!lines[at].includes('|') || at + 1 >= lines.length || !lines[at + 1].includes('-')) return false;
    const marks = cellsOf(lines[at + 1]);
    return marks.length === cellsOf(lines[at]).length && marks.every((cell) => /^:?-+:?$/.test(cell));
  }

  // Turns lines into blocks; `at` is the next line.
  class Blocks {
    constructor(lines, depth) {
      this.lines = lines;
      this.depth = depth;
      this.at = 0;
    }

    parse() {
      const nodes = [];
      while (this.at < this.lines.length) {
        if (this.lines[this.at].trim() === '') ++this.at;
        else nodes.push(this.fence() || this.heading() || this.rule() || this.quote() || this.list() || this.table() ||
                        this.paragraph());
      }
      return nodes;
    }

    nested(lines) {
      return new Blocks(lines, this.depth + 1).parse();
    }

    fence() {
      const found = kFence.exec(this.lines[this.at]);
      if (!found) return null;
      const isEnd = (line) => line.trim().startsWith(found[1]) && line.trim().replaceAll(found[1][0], '') === '';
      const begin = ++this.at;
      while (this.at < this.lines.length && !isEnd(this.lines[this.at])) ++this.at;
      const text = this.lines.slice(begin, this.at++).join('\n');
      return element('pre', {tabindex: 0, role: 'region', 'aria-label': `Code ${found[2].trim().slice(0, 40)}`.trim()},
                     element('code', {}, text));
    }

    heading() {
      const found = kHeading.exec(this.lines[this.at]);
      if (!found) return null;
      ++this.at;
      // Below the headings of the page.
      return element(`h${Math.min(found[1].length + 3, 6)}`, {}, inline(found[2].replace(/ #+ *$/, '')));
    }

    rule() {
      if (!kRule.test(this.lines[this.at])) return null;
      ++this.at;
      return element('hr');
    }

    quote() {
      if (this.depth >= kMaxDepth || !this.lines[this.at].trimStart().startsWith('>')) return null;
      const inside = [];
      for (; this.at < this.lines.length && this.lines[this.at].trimStart().startsWith('>'); ++this.at) {
        inside.push(this.lines[this.at].trimStart().replace(/^> ?/, ''));
      }
      return element('blockquote', {}, this.nested(inside));
    }

    list() {
      const first = this.depth < kMaxDepth && kItem.exec(this.lines[this.at]);
      if (!first) return null;
      const isOrdered = (mark) => /\d/.test(mark);
      const indent = first[1].length;
      const items = [];
      for (let found; this.at < this.lines.length && (found = kItem.exec(this.lines[this.at]));) {
        if (found[1].length < indent || isOrdered(found[2]) !== isOrdered(first[2])) break;
        items.push(element('li', {}, this.item(found)));
      }
      const start = isOrdered(first[2]) ? parseInt(first[2], 10) : null;
      return element(start === null ? 'ul' : 'ol', {start: start === 1 ? null : start}, items);
    }

    // The item's first line and all that is indented below it.
    item(found) {
      const indent = found[1].length + found[2].length + 1;
      const inside = [found[4]];
      for (++this.at; this.at < this.lines.length; ++this.at) {
        const line = this.lines[this.at];
        const margin = line.length - line.trimStart().length;
        const isInside = line.trim() !== '' && margin > found[1].length;
        const isGap = line.trim() === '' && /^ +\S/.test(this.lines[this.at + 1] || '');
        if (!isInside && !isGap) break;
        inside.push(line.slice(Math.min(margin, indent)));
      }
      const nodes = this.nested(inside);
      // One paragraph needs no frame of its own.
      return nodes[0]?.tagName === 'P' ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
    }

    table() {
      if (!isTable(this.lines, this.at)) return null;
      const head = cellsOf(this.lines[this.at]);
      const row = (name, cells) =>
          element('tr', {}, head.map((_, index) => element(name, {}, inline(cells[index] || ''))));
      const rows = [];
      for (this.at += 2; this.at < this.lines.length && this.lines[this.at].includes('|'); ++this.at) {
        rows.push(row('td', cellsOf(this.lines[this.at])));
      }
      return element('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table'},
                     element('table', {}, element('thead', {}, row('th', head)), element('tbody', {}, rows)));
    }

    startsBlock() {
      const line = this.lines[this.at];
      if (kFence.test(line) || kHeading.test(line) || kRule.test(line) || isTable(this.lines, this.at)) return true;
      return this.depth < kMaxDepth && (line.trimStart().startsWith('>') || kItem.test(line));
    }

    paragraph() {
      const begin = this.at++;
      while (this.at < this.lines.length && this.lines[this.at].trim() !== '' && !this.startsBlock()) ++this.at;
      return element('p', {}, inline(this.lines.slice(begin, this.at).map((line) => line.trim()).join('\n')));
    }
  }

  // The nodes of a text.
  const nodes = (text) => new Blocks(text.replace(/\r\n?/g, '\n').replaceAll('\t', '    ').split('\n'), 0).parse();

  return {nodes};
})();
