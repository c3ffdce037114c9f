// Filters that pick or map items by a test, a filter or an attribute.
#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/predicates.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

enum class Keep { kMatching, kOthers };
enum class Subject { kItem, kAttribute };

// Jinja takes anything false, none too, for an empty sequence here.
SequenceRef items_of(Context& context, const Value& value) {
  return is_true(value) ? iterate(context, value) : std::make_shared<const Sequence>();
}

// The first `count` positional arguments removed.
Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

const std::string& name_argument(const Arguments& arguments,
                                 size_t index,
                                 std::string_view filter) {
  if (!arguments.positional[index].is_text()) {
    throw TemplateError(fmt::format("{}() takes the name of a test, not a {}", filter,
                                    type_name(arguments.positional[index])));
  }
  return *arguments.positional[index].text();
}

Value choose(
    Context& context, const Value& self, const Arguments& arguments, Subject subject, Keep keep) {
  size_t used = subject == Subject::kAttribute ? 1 : 0;
  if (arguments.positional.size() < used)
    throw TemplateError("selectattr() and rejectattr() need an attribute");
  Value path = used == 1 ? as_text(context, arguments.positional[0]) : Value();
  bool has_test = arguments.positional.size() > used;
  Arguments rest = has_test ? without_first(arguments, used + 1) : Arguments{};
  std::vector<Value> chosen;
  SequenceRef items = items_of(context, self);
  for (const Value& item : items->items) {
    Value tested = used == 1 ? get_path(context, item, *path.text()) : item;
    bool holds = has_test
                     ? apply_test(context, name_argument(arguments, used, "select"), tested, rest)
                     : is_true(tested);
    if (holds == (keep == Keep::kMatching)) chosen.push_back(item);
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(chosen));
}

Value filter_select(Context& context, const Value& self, const Arguments& arguments) {
  return choose(context, self, arguments, Subject::kItem, Keep::kMatching);
}

Value filter_reject(Context& context, const Value& self, const Arguments& arguments) {
  return choose(context, self, arguments, Subject::kItem, Keep::kOthers);
}

Value filter_selectattr(Context& context, const Value& self, const Arguments& arguments) {
  return choose(context, self, arguments, Subject::kAttribute, Keep::kMatching);
}

Value filter_rejectattr(Context& context, const Value& self, const Arguments& arguments) {
  return choose(context, self, arguments, Subject::kAttribute, Keep::kOthers);
}

Value map_attribute(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("map", arguments, {"attribute", "default"});
  Value path = as_text(context, reader.value(0));
  std::vector<Value> mapped;
  SequenceRef items = items_of(context, self);
  for (const Value& item : items->items) {
    Value value = get_path(context, item, *path.text());
    if (value.is_undefined() && reader.find(1) != nullptr) value = *reader.find(1);
    mapped.push_back(std::move(value));
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(mapped));
}

Value filter_map(Context& context, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return map_attribute(context, self, arguments);
  const std::string& name = name_argument(arguments, 0, "map");
  Arguments rest = without_first(arguments, 1);
  // A filter that maps with itself could nest without end.
  if (name == "map" || !is_filter(name))
    throw TemplateError(fmt::format("map() with the filter '{}'", name));
  std::vector<Value> mapped;
  SequenceRef items = items_of(context, self);
  for (const Value& item : items->items) {
    mapped.push_back(apply_filter(context, name, item, rest));
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(mapped));
}

constexpr NamedFunction kSelectionFilters[] = {
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
};

}  // namespace

NativeFunction find_selection_filter(std::string_view name) {
  for (const NamedFunction& filter : kSelectionFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace droidspeak::jinja
