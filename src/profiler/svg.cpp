#include "profiler/svg.h"

#include <fmt/format.h>

namespace droidspeak {
namespace {

constexpr std::string_view kStyle = R"(
  .paper { fill: #ffffff; }
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; }
  .title { font-size: 15px; font-weight: 600; }
  .label { font-size: 12px; }
  .tick { font-size: 11px; fill: #52606d; }
  .cell-dark { font-size: 9px; fill: #12202c; }
  .cell-light { font-size: 9px; fill: #ffffff; }
  .axis { stroke: #52606d; stroke-width: 1; fill: none; }
  .grid { stroke: #e4e7eb; stroke-width: 1; }
  .frame { fill: none; stroke: #cbd2d9; stroke-width: 1; }
  .raw { stroke: #b4552d; fill: #b4552d; }
  .translated { stroke: #1f6fb2; fill: #1f6fb2; }
  .front { stroke: #52606d; stroke-width: 1.5; stroke-dasharray: 4 3; fill: none; }
  .interval { stroke-width: 1.5; }
  .faint { fill-opacity: 0.28; stroke: none; }
  .bar { fill: #4c7f9e; }
  .whisker { stroke: #1f2933; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #161b22; }
    text { fill: #e6edf3; }
    .tick { fill: #9aa7b4; }
    .cell-dark { fill: #12202c; }
    .cell-light { fill: #ffffff; }
    .axis { stroke: #9aa7b4; }
    .grid { stroke: #2a323c; }
    .frame { stroke: #3b4654; }
    .raw { stroke: #e08a5f; fill: #e08a5f; }
    .translated { stroke: #6cb2ee; fill: #6cb2ee; }
    .faint { stroke: none; }
    .front { stroke: #9aa7b4; fill: none; }
    .bar { fill: #6aa5c8; }
    .whisker { stroke: #e6edf3; }
  }
)";

const char* name_of(TextAnchor anchor) {
  switch (anchor) {
    case TextAnchor::kStart:
      return "start";
    case TextAnchor::kMiddle:
      return "middle";
    case TextAnchor::kEnd:
      return "end";
  }
  return "start";
}

std::string tooltip_element(std::string_view text) {
  return text.empty() ? std::string() : fmt::format("<title>{}</title>", escape_xml(text));
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

Svg::Svg(double width, double height, std::string_view title) {
  out_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 "
      "{0:g} {1:g}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>{3}</style>\n<rect class=\"paper\" width=\"{0:g}\" "
      "height=\"{1:g}\"/>\n",
      width, height, escape_xml(title), kStyle);
}

void Svg::line(Point from, Point to, std::string_view style) {
  out_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\"/>\n",
                  style, from.x, from.y, to.x, to.y);
}

void Svg::circle(Point centre, double radius, std::string_view style, std::string_view tooltip) {
  out_ += fmt::format("<circle class=\"{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:.2f}\">{}</circle>\n",
                      style, centre.x, centre.y, radius, tooltip_element(tooltip));
}

void Svg::box(const Box& box,
              std::string_view style,
              std::string_view fill,
              std::string_view tooltip) {
  std::string colour = fill.empty() ? std::string() : fmt::format(" fill=\"{}\"", escape_xml(fill));
  out_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
      "height=\"{:.2f}\"{}>{}</rect>\n",
      style, box.x, box.y, box.width, box.height, colour, tooltip_element(tooltip));
}

void Svg::path(std::string_view commands, std::string_view style) {
  out_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", style, commands);
}

void Svg::text(Point at, std::string_view content, std::string_view style, TextAnchor anchor) {
  out_ += fmt::format("<text class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">{}</text>\n",
                      style, at.x, at.y, name_of(anchor), escape_xml(content));
}

void Svg::turned_text(Point at, std::string_view content, std::string_view style) {
  out_ += fmt::format(
      "<text class=\"{}\" transform=\"translate({:.2f} {:.2f}) rotate(-90)\" "
      "text-anchor=\"middle\">{}</text>\n",
      style, at.x, at.y, escape_xml(content));
}

std::string Svg::finish() && {
  return std::move(out_) + "</svg>\n";
}

}  // namespace droidspeak
