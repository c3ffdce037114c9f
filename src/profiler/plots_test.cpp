#include "profiler/plots.h"

#include <cctype>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "profiler/svg.h"

namespace droidspeak {
namespace {

// Tags open and close in order, attributes are quoted, and text holds no bare markup.
testing::AssertionResult is_well_formed(std::string_view xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    size_t end = at + 1;
    bool is_quoted = false;
    for (; end < xml.size() && (is_quoted || xml[end] != '>'); ++end) {
      if (xml[end] == '"') is_quoted = !is_quoted;
      if (xml[end] == '<') return testing::AssertionFailure() << "markup inside a tag at " << at;
    }
    if (end == xml.size()) return testing::AssertionFailure() << "tag without end at " << at;
    std::string_view tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    bool closes = tag.starts_with('/');
    std::string name(tag.substr(closes ? 1 : 0, tag.find_first_of(" \n/", 1) - (closes ? 1 : 0)));
    if (closes) {
      if (open.empty() || open.back() != name)
        return testing::AssertionFailure() << "</" << name << "> closes nothing";
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
  }
  if (!open.empty()) return testing::AssertionFailure() << "<" << open.back() << "> stays open";
  return testing::AssertionSuccess();
}

PlanBook example(int32_t layers) {
  PlanBook book;
  book.sender = "base <&\"";
  book.receiver = "qa";
  book.num_layers = layers;
  for (int32_t b = 0; b < layers; b += 2) {
    for (int32_t c = b + 2; c <= layers; c += 2) {
      book.heat_map.push_back({b, c, false, 0.3 / (1 + c - b), 0.9});
      book.heat_map.push_back({b, c, true, 0.1 / (1 + c - b), 0.95});
    }
  }
  book.heat_map.push_back({0, 0, false, 0.4, 0.8});
  for (int32_t k = 0; k < layers; k += 2) {
    PlanEntry entry;
    entry.plan = {0, k == 0 ? 0 : 2, k == 0 ? 0 : 2 + k};
    entry.translated = k > 4;
    entry.quality.kl = 0.3 / (1 + k);
    entry.quality.kl_low = entry.quality.kl * 0.8;
    entry.quality.kl_high = entry.quality.kl * 1.2;
    entry.quality.score = 0.3;
    book.frontier.push_back(entry);
  }
  for (int32_t layer = 0; layer < layers; ++layer)
    book.sensitivity.push_back({layer, 0.01 * layer, 0.005});
  return book;
}

TEST(Plots, AreWellFormed) {
  for (int32_t layers : {4, 30}) {
    PlanBook book = example(layers);
    EXPECT_TRUE(is_well_formed(heat_map_svg(book)));
    EXPECT_TRUE(is_well_formed(pareto_svg(book)));
    EXPECT_TRUE(is_well_formed(sensitivity_svg(book)));
  }
}

TEST(Plots, OfAnEmptyBookAreWellFormed) {
  PlanBook book;
  book.num_layers = 4;
  for (const std::string& svg : {heat_map_svg(book), pareto_svg(book), sensitivity_svg(book)}) {
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST(Plots, DrawOneCellPerMeasuredPlan) {
  PlanBook book = example(8);
  std::string svg = heat_map_svg(book);
  size_t cells = 0;
  for (size_t at = svg.find("class=\"cell\""); at != std::string::npos;
       at = svg.find("class=\"cell\"", at + 1))
    ++cells;
  EXPECT_EQ(cells, book.heat_map.size() - 1);  // plain reuse is a note
}

TEST(Plots, AreWrittenBesideTheBook) {
  TemporaryFolder folder;
  write_plots(folder.path() / "qa-from-base.json", example(4));
  for (const char* kind : {"heatmap", "pareto", "sensitivity"}) {
    EXPECT_TRUE(
        std::filesystem::exists(folder.path() / (std::string("qa-from-base.") + kind + ".svg")));
  }
}

TEST(EscapeXml, TurnsMarkupIntoEntities) {
  EXPECT_EQ(escape_xml("a<b>&\"c\n"), "a&lt;b&gt;&amp;&quot;c");
}

}  // namespace
}  // namespace droidspeak
