// Adapters that clients name, and what they may swap while one is read.
#include "model/adapter_opener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "model/family_tokenizer.h"
#include "support/adapter_fixture.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class AdapterRoot : public AdapterTest {
 protected:
  AdapterRoot() {
    write();
    fs::create_directories(root() / "mine");
    fs::create_directories(outside());
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
      fs::copy(folder_.path() / name, root() / "mine" / name);
      fs::copy(folder_.path() / name, outside() / name);
    }
    for (const fs::path& path : {root() / "mine.gguf", outside() / "mine.gguf"}) {
      write_gguf(
          path,
          {{"general.architecture", std::string("llama")},
           {"general.type", std::string("adapter")},
           {"adapter.type", std::string("lora")}},
          {{"blk.0.attn_v.weight.lora_a", DType::kF32, {2, 64}, std::as_bytes(std::span(down_))},
           {"blk.0.attn_v.weight.lora_b", DType::kF32, {32, 2}, std::as_bytes(std::span(up_))}});
    }
  }

  fs::path root() const { return folder_.path() / "root"; }

  fs::path outside() const { return folder_.path() / "outside"; }

  // Why it is not read. Called before the first, second, ... file is opened: the folder counts.
  std::string refusal_of(const fs::path& asked, std::function<void(int)> before_open = {}) const {
    auto count = [&before_open, times = 0]() mutable {
      if (before_open) before_open(++times);
    };
    return failure_of([&] {
      AdapterFiles(AdapterOpener(AdapterPath(root(), asked), count), base_, Precision::kFast);
    });
  }

  void swap_for_link(const fs::path& name) const {
    fs::rename(root() / name, folder_.path() / "away");
    fs::create_symlink(name == "mine" ? outside() : outside() / name.filename(), root() / name);
  }

  const std::vector<float> down_ = std::vector<float>(2 * 64, 0.1f);
  const std::vector<float> up_ = std::vector<float>(32 * 2, 0.1f);
};

TEST_F(AdapterRoot, HoldsFoldersAndGgufFiles) {
  EXPECT_EQ(refusal_of("mine"), "");
  EXPECT_EQ(refusal_of("mine.gguf"), "");
  EXPECT_EQ(refusal_of(root() / "mine"), "");
  EXPECT_EQ(
      AdapterFiles(AdapterOpener(AdapterPath(root(), "./mine")), base_, Precision::kFast).path(),
      fs::canonical(root()) / "mine");
  fs::copy(root() / "mine.gguf", root() / "mine.txt");
  EXPECT_THAT(refusal_of("mine.txt"), HasSubstr("expected an adapter's folder or GGUF file"));
}

TEST_F(AdapterRoot, MessagesNameFilesAsAskedFor) {
  fs::remove(root() / "mine/adapter_model.safetensors");
  EXPECT_THAT(refusal_of("mine"), HasSubstr("mine/adapter_model.safetensors: cannot open"));
  EXPECT_THAT(refusal_of("mine"), Not(HasSubstr(root().string())));
  write_file_atomically(root() / "mine.gguf", "not this");
  EXPECT_TRUE(refusal_of("mine.gguf").starts_with("mine.gguf: ")) << refusal_of("mine.gguf");
}

// What is outside looks like what is not there.
TEST_F(AdapterRoot, TellsNothingOfWhatLiesOutside) {
  fs::create_symlink(outside(), root() / "there");
  fs::create_symlink(folder_.path() / "nothing", root() / "not_there");
  for (const char* name : {"there", "not_there", "never", "../outside", "../nothing"}) {
    EXPECT_EQ(refusal_of(name), std::string(name) +
                                    ": expected an adapter's folder or GGUF file under "
                                    "--adapter-root");
  }
  const fs::path config = root() / "mine/adapter_config.json";
  fs::remove(config);
  for (const fs::path& target : {outside() / "adapter_config.json", outside() / "nothing",
                                 fs::path("../../outside/adapter_config.json")}) {
    fs::create_symlink(target, config);
    EXPECT_THAT(refusal_of("mine"), HasSubstr("under --adapter-root")) << target;
    fs::remove(config);
  }
}

TEST_F(AdapterRoot, LinksOfAFolderAreFollowedBelowTheRoot) {
  const fs::path config = root() / "mine/adapter_config.json";
  fs::create_directories(root() / "shared");
  fs::rename(config, root() / "shared/config.json");
  for (const fs::path& target :
       {fs::path("../shared/config.json"), root() / "shared/config.json"}) {
    fs::create_symlink(target, config);
    EXPECT_EQ(refusal_of("mine"), "") << target;
    fs::remove(config);
  }
}

TEST_F(AdapterRoot, NothingThatBecomesALinkIsRead) {
  struct Swap {
    fs::path asked;
    fs::path name;
    int when;
  };

  for (const Swap& swap :
       {Swap{"mine", "mine", 1}, Swap{"mine", "mine/adapter_config.json", 2},
        Swap{"mine", "mine/adapter_model.safetensors", 3}, Swap{"mine.gguf", "mine.gguf", 1}}) {
    const std::string refused = refusal_of(swap.asked, [&](int count) {
      if (count == swap.when) swap_for_link(swap.name);
    });
    EXPECT_THAT(refused, HasSubstr("under --adapter-root")) << swap.name << " " << swap.when;
    ASSERT_TRUE(fs::is_symlink(root() / swap.name)) << "it was swapped";
    fs::remove(root() / swap.name);
    fs::rename(folder_.path() / "away", root() / swap.name);
    EXPECT_EQ(refusal_of(swap.asked), "");
  }
}

// Another version that takes the folder's place is not joined with the first.
TEST_F(AdapterRoot, BothFilesAreOfTheFolderThatWasOpened) {
  fs::create_directory(root() / "next");
  write_file_atomically(root() / "next/adapter_config.json", "{}");
  write_file_atomically(root() / "next/adapter_model.safetensors", "none");
  for (int when : {2, 3}) {
    EXPECT_EQ(refusal_of("mine",
                         [&](int count) {
                           if (count != when) return;
                           fs::rename(root() / "mine", root() / "before");
                           fs::rename(root() / "next", root() / "mine");
                         }),
              "");
    ASSERT_TRUE(fs::exists(root() / "before")) << "it was replaced";
    fs::rename(root() / "mine", root() / "next");
    fs::rename(root() / "before", root() / "mine");
  }
}

// What a link leads to when it is opened is read, weights and tokenizer, whatever it leads to then.
TEST_F(AdapterRoot, BothAreOfTheFolderThatALinkLedTo) {
  write_file_atomically(root() / "mine/tokenizer.json",
                        R"({"model":{"vocab":{"a":0,"b":1},"merges":[]}})");
  fs::copy(root() / "mine", root() / "next");
  write_file_atomically(root() / "next/tokenizer.json",
                        R"({"model":{"vocab":{"a":1,"b":0},"merges":[]}})");
  write_file_atomically(root() / "next/adapter_config.json", "{}");
  const fs::path link = root() / "link";
  for (const AdapterPath& asked : {AdapterPath(link), AdapterPath(root(), "link")}) {
    fs::create_symlink("mine", link);
    const AdapterOpener opener(asked);
    fs::remove(link);
    fs::create_symlink("next", link);
    EXPECT_EQ(failure_of([&] { AdapterFiles(opener, base_, Precision::kFast); }), "");
    EXPECT_EQ(BaseTokenizer(root() / "mine").compare(opener).mismatch, "");
    EXPECT_NE(BaseTokenizer(root() / "mine").compare(AdapterOpener(asked)).mismatch, "");
    fs::remove(link);
  }
}

TEST_F(AdapterRoot, NamesWhatIsMissingWithoutARoot) {
  const fs::path nothing = folder_.path() / "nothing";
  EXPECT_EQ(failure_of([&] { AdapterOpener{AdapterPath(nothing)}; }),
            nothing.string() + ": cannot open: No such file or directory");
  fs::create_directory(nothing);
  EXPECT_EQ(failure_of([&] { AdapterOpener(AdapterPath(nothing)).open("file"); }),
            (nothing / "file").string() + ": cannot open: No such file or directory");
}

TEST_F(AdapterRoot, LinksWithinTheFolderAreOfTheOneThatWasOpened) {
  fs::copy(root() / "mine", root() / "next", fs::copy_options::recursive);
  for (const char* folder : {"mine", "next"}) {
    const fs::path config = root() / folder / "adapter_config.json";
    fs::create_directory(root() / folder / "parts");
    fs::rename(config, root() / folder / "parts/config.json");
    fs::create_symlink("parts/config.json", config);
  }
  write_file_atomically(root() / "next/parts/config.json", "{}");
  EXPECT_NE(refusal_of("next"), "");
  EXPECT_EQ(refusal_of("mine",
                       [&](int count) {
                         if (count != 2) return;
                         fs::rename(root() / "mine", root() / "before");
                         fs::rename(root() / "next", root() / "mine");
                       }),
            "");
}

TEST_F(AdapterRoot, FilesMayBeLinksToOthersBelowIt) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::create_directories(root() / "blobs");
    fs::rename(root() / "mine" / name, root() / "blobs" / name);
    fs::create_symlink(fs::path("../blobs") / name, root() / "mine" / name);
  }
  EXPECT_EQ(refusal_of("mine"), "");
}

TEST_F(AdapterRoot, NothingThatBecomesAPipeIsWaitedFor) {
  for (const char* name : {"mine/adapter_config.json", "mine/adapter_model.safetensors"}) {
    const std::string refused = refusal_of("mine", [&](int count) {
      if (count != 2) return;
      fs::rename(root() / name, folder_.path() / "away");
      ASSERT_EQ(::mkfifo((root() / name).c_str(), 0600), 0);
    });
    EXPECT_THAT(refused, HasSubstr(std::string(name) + ": not a regular file"));
    fs::remove(root() / name);
    fs::rename(folder_.path() / "away", root() / name);
  }
}

// A larger file under the name of one that was checked is checked itself.
TEST_F(AdapterRoot, WhatIsOpenedIsMeasured) {
  const std::string refused = refusal_of("mine", [&](int count) {
    if (count != 3) return;
    const fs::path path = root() / "mine/adapter_model.safetensors";
    fs::remove(path);
    write_file_atomically(path, "x");
    fs::resize_file(path, max_adapter_bytes(base_) + 1);
  });
  EXPECT_THAT(refused, HasSubstr("an adapter of this base has at most"));
}

}  // namespace
}  // namespace droidspeak
