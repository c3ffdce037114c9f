"""Writes src/text/jinja/case_table.cpp: Python's simple upper and lower case mappings as ranges.

Usage: tools/make_case_table.py > src/text/jinja/case_table.cpp
"""


def ranges(convert):
    """[first, last, stride, delta] rows over the code points that map to one other code point."""
    rows = []
    for code in range(0x80, 0x110000):
        if 0xD800 <= code < 0xE000 or len(convert(chr(code))) != 1:
            continue
        delta = ord(convert(chr(code))) - code
        if delta == 0:
            continue
        row = rows[-1] if rows else None
        step = code - row[1] if row else 0
        if row and row[3] == delta and (step == row[2] or (row[0] == row[1] and step <= 2)):
            row[1], row[2] = code, step
        else:
            rows.append([code, code, 1, delta])
    return rows


def table(name, convert):
    print(f"constexpr CaseRange {name}[] = {{")
    line = "   "
    for row in ranges(convert):
        cell = " {" + ", ".join(str(number) for number in row) + "},"
        if len(line) + len(cell) > 100:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};\n")


print("// Made by tools/make_case_table.py.")
print('#include "text/jinja/case_table.h"\n')
print("namespace droidspeak::jinja {\n\nnamespace {\n")
print("// clang-format off")
table("kToLower", str.lower)
table("kToUpper", str.upper)
print("// clang-format on\n\n}  // namespace\n")
print("std::span<const CaseRange> lower_case_ranges() { return kToLower; }\n")
print("std::span<const CaseRange> upper_case_ranges() { return kToUpper; }\n")
print("}  // namespace droidspeak::jinja")
