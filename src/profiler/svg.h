// Just enough SVG for plots: shapes with classes, one style sheet with a light and a dark scheme.
#pragma once

#include <string>
#include <string_view>

namespace droidspeak {

enum class TextAnchor { kStart, kMiddle, kEnd };

struct Point {
  double x = 0;
  double y = 0;
};

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

class Svg {
 public:
  // `title` is what a screen reader says.
  Svg(double width, double height, std::string_view title);

  // Classes of the style sheet: "axis", "grid", "frame", "raw", "translated", "faint", "bar".
  void line(Point from, Point to, std::string_view style);
  void circle(Point centre, double radius, std::string_view style, std::string_view tooltip = {});
  // `fill`: a colour, or empty to take the style's.
  void box(const Box& box,
           std::string_view style,
           std::string_view fill = {},
           std::string_view tooltip = {});
  void path(std::string_view commands, std::string_view style);
  // Styles: "title", "label", "tick", "cell-dark", "cell-light".
  void text(Point at,
            std::string_view content,
            std::string_view style,
            TextAnchor anchor = TextAnchor::kStart);
  void turned_text(Point at, std::string_view content, std::string_view style);  // reads upwards

  std::string finish() &&;

 private:
  std::string out_;
};

// "<" and the like become entities; control characters are dropped.
std::string escape_xml(std::string_view text);

}  // namespace droidspeak
