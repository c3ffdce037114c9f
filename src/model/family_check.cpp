#include "model/family_check.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "model/family_tokenizer.h"

namespace droidspeak {
namespace {

std::string describe_misfit(BaseTokenizer& tokenizer,
                            const ModelConfig& base_config,
                            const FamilyFile::Member& variant) {
  std::string mismatch = describe_mismatch(base_config, check_checkpoint(variant.path));
  if (!mismatch.empty()) return mismatch;
  mismatch = tokenizer.mismatch_of(variant.path);
  return mismatch.empty() ? "" : "its tokenizer differs: " + mismatch;
}

}  // namespace

std::vector<MemberCheck> check_family(const FamilyFile& file) {
  std::vector<MemberCheck> checks = {{file.base.name, MemberKind::kBase, file.base.path, ""}};
  std::optional<ModelConfig> base;
  try {
    base = check_checkpoint(file.base.path);
  } catch (const Failure& failure) {
    checks.front().problem = failure.what();
  }
  BaseTokenizer tokenizer(file.base.path);
  for (const FamilyFile::Member& member : file.variants) {
    const bool is_adapter = !member.adapter.empty();
    MemberCheck check{member.name, is_adapter ? MemberKind::kAdapter : MemberKind::kCheckpoint,
                      is_adapter ? member.adapter : member.path, ""};
    try {
      if (!base) {
        check.problem = "what it should fit, the base, cannot be read";
      } else if (is_adapter) {
        const AdapterOpener opener(member.adapter);
        AdapterFiles files(opener, *base, Precision::kFast);
        check.is_activated = !files.begin_adapter().invocation.empty();
        AdapterTokenizer compared = tokenizer.compare(opener);
        check.differences = std::move(compared.differences);
        if (!compared.mismatch.empty())
          check.problem = "its tokenizer differs: " + compared.mismatch;
      } else {
        check.problem = describe_misfit(tokenizer, *base, member);
        check.has_tokenizer = has_tokenizer(member.path);
      }
    } catch (const Failure& failure) {
      check.problem = failure.what();
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace droidspeak
