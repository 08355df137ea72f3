#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <zlib.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <hasten/base/error.h>
#include <hasten/base/files.h>
#include <hasten/data/files.h>
#include <hasten/data/images.h>
#include <hasten/data/loader.h>
#include <hasten/data/tensor_dataset.h>

#include "support/errors.h"
#include "support/temporary_folder.h"

namespace hasten {
namespace {

using test::message_of;

using Ids = std::vector<std::int64_t>;

// Bytes that look random, of any shape.
at::Tensor bytes(const Ids& shape) {
  at::Tensor tensor = at::zeros(shape, at::TensorOptions(at::kByte));
  auto* out = tensor.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    out[i] = static_cast<std::uint8_t>(data::mix(static_cast<std::uint64_t>(i)));
  return tensor;
}

// What the class does for one image, said with whole-tensor operations: pad, cut, mirror, scale.
at::Tensor reference(const at::Tensor& image, const data::ImageOptions& options, data::Random random) {
  const std::int64_t padding = options.crop_padding;
  at::Tensor chw = (image.dim() == 2 ? image.unsqueeze(0) : image.permute({2, 0, 1})).to(at::kDouble);
  if (padding > 0) {
    const std::int64_t top = random.below(2 * padding + 1);
    const std::int64_t left = random.below(2 * padding + 1);
    chw = at::constant_pad_nd(chw, {padding, padding, padding, padding})
              .narrow(1, top, chw.size(1))
              .narrow(2, left, chw.size(2));
  }
  if (options.flip && random.below(2) == 1) chw = chw.flip({2});
  at::Tensor result = at::zeros_like(chw);
  for (std::int64_t c = 0; c < chw.size(0); ++c) {
    const auto of = [&](const std::vector<double>& v) {
      return v[v.size() == 1 ? 0 : static_cast<std::size_t>(c)];
    };
    result[c] = (chw[c] / 255 - of(options.mean)) / of(options.std);
  }
  return result.to(options.dtype);
}

void expect_reference(const data::ImageDataset& dataset) {
  const data::BatchContext context{.seed = 5, .epoch = 2};
  const Ids indices{3, 0, 19, 7, 7, 12};
  const auto [images, labels] = dataset.get_batch(indices, context);
  ASSERT_EQ(images.size(0), 6);
  EXPECT_EQ(images.scalar_type(), dataset.options().dtype);
  EXPECT_EQ(labels.scalar_type(), at::kLong);
  if (dataset.options().channels_last) {
    EXPECT_TRUE(images.is_contiguous(at::MemoryFormat::ChannelsLast));
  } else {
    EXPECT_TRUE(images.is_contiguous());
  }
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const at::Tensor expected =
        reference(dataset.images()[indices[i]], dataset.options(), context.random(indices[i]));
    EXPECT_TRUE(images[row].equal(expected)) << "image " << indices[i];
    EXPECT_EQ(labels[row].item<std::int64_t>(), indices[i] * 3);
  }
}

TEST(ImageDataset, EqualsThePlainCalculation) {
  const at::Tensor labels = at::arange(20).mul(3).to(at::kInt);
  for (const Ids& shape : {Ids{20, 6, 5}, Ids{20, 5, 7, 3}, Ids{20, 4, 4, 1}, Ids{20, 3, 3, 4}})
    for (const std::int64_t padding : {0, 1, 3})
      for (const bool flip : {false, true})
        for (const bool channels_last : {false, true})
          for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
            data::ImageOptions options{.crop_padding = padding,
                                       .flip = flip,
                                       .mean = {0.4},
                                       .std = {0.25},
                                       .channels_last = channels_last,
                                       .dtype = dtype};
            if (shape.size() == 4 && shape[3] == 3) options.mean = {0.1, 0.5, 0.9};
            if (shape.size() == 4 && shape[3] == 3) options.std = {0.1, 0.2, 2};
            expect_reference(data::ImageDataset(bytes(shape), labels, options));
          }
}

TEST(ImageDataset, UsesEveryPlaceAndBothDirections) {
  at::Tensor one = at::zeros({1, 3, 3}, at::TensorOptions(at::kByte));
  one[0][1][0] = 255;
  const data::ImageDataset dataset(one, at::zeros({1}, at::kLong), {.crop_padding = 1, .flip = true});
  std::map<std::int64_t, int> places;  // of the white pixel, -1 when it was cut off
  for (std::int64_t epoch = 0; epoch < 1800; ++epoch) {
    const at::Tensor image = dataset.get_batch(Ids{0}, {.seed = 1, .epoch = epoch}).images;
    ++places[image.sum().item<double>() == 0 ? -1 : image.argmax().item<std::int64_t>()];
  }
  // The pixel lies at row 0..2; moved to column -1, 0 or 1 and then mirrored or not: cut off in a third of
  // the cases, in column 1 in a third, in columns 0 and 2 in a sixth each. Six standard deviations.
  EXPECT_EQ(places.size(), 10U);
  EXPECT_NEAR(places[-1], 600, 120);
  for (std::int64_t row = 0; row < 3; ++row) {
    EXPECT_NEAR(places[3 * row + 1], 200, 80);
    EXPECT_NEAR(places[3 * row], 100, 58);
    EXPECT_NEAR(places[3 * row + 2], 100, 58);
  }
}

TEST(ImageDataset, GivesTheSameBitsWithAnyNumberOfWorkers) {
  const data::ImageDataset dataset(bytes({50, 8, 8, 3}), at::arange(50), {.crop_padding = 2, .flip = true});
  std::vector<at::Tensor> expected;
  for (const int workers : {0, 1, 4}) {
    data::Loader loader(dataset, {.batch_size = 7, .shuffle = true, .workers = workers});
    std::size_t next = 0;
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto& [images, labels] : loader) {
        if (workers == 0) expected.push_back(images);
        ASSERT_TRUE(images.equal(expected.at(next++)));
      }
    EXPECT_FALSE(expected[0].equal(expected[8]));
  }
}

TEST(ImageDataset, RefusesWhatItCannotRead) {
  const auto images = bytes({4, 3, 3});
  const auto labels = at::arange(4);
  const auto refusal = [](const at::Tensor& i, const at::Tensor& l, data::ImageOptions options = {}) {
    return message_of([&] { data::ImageDataset(i, l, options); }, ErrorCode::kInvalidArgument);
  };
  EXPECT_NE(refusal(images.to(at::kFloat), labels).find("[4, 3, 3]"), std::string::npos);
  EXPECT_NE(refusal(images[0], labels).find("[3, 3]"), std::string::npos);
  EXPECT_NE(refusal(images, labels.to(at::kFloat)).find("[4]"), std::string::npos);
  EXPECT_NE(refusal(images, labels, {.crop_padding = 4}).find("crop_padding is 4"), std::string::npos);
  EXPECT_NE(refusal(images, labels, {.mean = {1, 2}}).find("mean has 2"), std::string::npos);
  EXPECT_NE(refusal(images, labels, {.std = {0}}).find("std holds 0"), std::string::npos);
  EXPECT_NE(refusal(images, labels, {.dtype = at::kLong}).find("Long"), std::string::npos);
  EXPECT_NE(message_of([&] { data::ImageDataset(images, at::arange(5)); }, ErrorCode::kMismatch)
                .find("4 images and 5 labels"),
            std::string::npos);
  EXPECT_THROW((void)data::ImageDataset(images, labels).get_batch(Ids{4}, {}), Error);
}

std::string idx(std::initializer_list<std::uint32_t> sizes, const std::string& content) {
  std::string file{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(size >> shift);
  return file + content;
}

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void write_gzip(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
            static_cast<int>(content.size()));
  gzclose(file);
}

std::string pixels(std::size_t count) {
  std::string content(count * 28 * 28, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 % 251);
  return content;
}

TEST(FashionMnist, ReadsItsFilesPlainAndCompressed) {
  const test::TemporaryFolder folder;
  const std::string labels{0, 9, 5};
  write(folder / "train-images-idx3-ubyte", idx({3, 28, 28}, pixels(3)));
  write_gzip(folder / "train-labels-idx1-ubyte.gz", idx({3}, labels));
  write_gzip(folder / "t10k-images-idx3-ubyte.gz", idx({1, 28, 28}, pixels(1)));
  write(folder / "t10k-labels-idx1-ubyte", idx({1}, "\x04"));
  const auto train = data::fashion_mnist(folder.path(), true);
  EXPECT_EQ(train.size(), 3);
  const auto [images, classes] = train.get_batch(Ids{2}, {});
  EXPECT_EQ(images.sizes(), (Ids{1, 1, 28, 28}));
  EXPECT_EQ(classes.item<std::int64_t>(), 5);
  const double pixel = (2 * 784 + 11) * 7 % 251;
  EXPECT_NEAR(images.flatten()[11].item<double>(), (pixel / 255 - 0.2860) / 0.3530, 1e-6);
  EXPECT_EQ(data::fashion_mnist(folder.path(), false).labels().item<std::int64_t>(), 4);
}

TEST(FashionMnist, NamesTheFileThatIsMissingCutOrOfAnotherSet) {
  const test::TemporaryFolder folder;
  const auto read = [&] { (void)data::fashion_mnist(folder.path(), true); };
  EXPECT_NE(message_of(read, ErrorCode::kNotFound).find("train-images-idx3-ubyte"), std::string::npos);
  write(folder / "train-images-idx3-ubyte", idx({3, 28, 28}, pixels(3)));
  EXPECT_NE(message_of(read, ErrorCode::kNotFound).find("train-labels-idx1-ubyte"), std::string::npos);
  write(folder / "train-labels-idx1-ubyte", idx({4}, std::string(4, '\0')));
  const std::string counts = message_of(read, ErrorCode::kMismatch);
  EXPECT_NE(counts.find("[3, 28, 28]"), std::string::npos) << counts;
  EXPECT_NE(counts.find("[4]"), std::string::npos) << counts;
  write(folder / "train-labels-idx1-ubyte", idx({3}, std::string(2, '\0')));
  EXPECT_NE(message_of(read, ErrorCode::kCorruptData).find("train-labels-idx1-ubyte"), std::string::npos);
  write(folder / "train-labels-idx1-ubyte", idx({3}, std::string(3, '\x0b')));
  EXPECT_NE(message_of(read, ErrorCode::kMismatch).find("labels outside 0 to 9"), std::string::npos);
  write(folder / "train-images-idx3-ubyte", idx({3, 28, 28}, pixels(3)).substr(0, 1000));
  EXPECT_NE(message_of(read, ErrorCode::kCorruptData).find("train-images-idx3-ubyte"), std::string::npos);
}

// An .npy file of a version, with a header of at least `length` bytes.
std::string npy(int version, const std::string& dictionary, const std::string& content,
                std::size_t length = 118) {
  std::string header = dictionary;
  header.resize(std::max(length, dictionary.size() + 1) - 1, ' ');
  header += '\n';
  std::string file = "\x93NUMPY" + std::string{static_cast<char>(version), '\0'};
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte)
    file += static_cast<char>(header.size() >> (8 * byte));
  return file + header + content;
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

TEST(LoadNpy, ReadsColumnOrderAndBothByteOrders) {
  const test::TemporaryFolder folder;
  write(folder / "f.npy", npy(1, "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }",
                              from_hex("010004000200050003000600")));
  const at::Tensor columns = data::load_npy(folder / "f.npy");
  EXPECT_TRUE(columns.equal(at::arange(1, 7).view({2, 3}).to(at::kShort)));
  EXPECT_TRUE(data::tensors(columns).get_batch(Ids{1}).equal(at::arange(4, 7).view({1, 3}).to(at::kShort)));
  write(folder / "b.npy",
        npy(1, "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", from_hex("3f80000040000000")));
  const at::Tensor big = data::load_npy(folder / "b.npy");
  EXPECT_EQ(big.scalar_type(), at::kFloat);
  EXPECT_EQ(big[0].item<double>(), 1);
  EXPECT_EQ(big[1].item<double>(), 2);
  write(folder / "bf.npy", npy(1, "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }",
                               from_hex("000100040002000500030006")));
  EXPECT_TRUE(data::load_npy(folder / "bf.npy").equal(columns.contiguous()));
}

TEST(LoadNpy, ReadsAllVersionsLongHeadersAndEmptyArrays) {
  const test::TemporaryFolder folder;
  const std::string dictionary = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
  const std::string content = from_hex("07000000000000000900000000000000");
  for (const auto& [name, file] :
       std::map<std::string, std::string>{{"1", npy(1, dictionary, content)},
                                          {"2", npy(2, dictionary, content, 116)},
                                          {"3", npy(3, dictionary, content, 116)},
                                          {"long", npy(1, dictionary, content, 40054)},
                                          {"odd", npy(1, dictionary, content, 113)}}) {
    write(folder / name, file);
    const at::Tensor array = data::load_npy(folder / name);
    EXPECT_EQ(array[0].item<std::int64_t>() * 100 + array[1].item<std::int64_t>(), 709) << name;
  }
  write(folder / "none", npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", ""));
  EXPECT_EQ(data::load_npy(folder / "none").sizes(), (Ids{0, 3}));
  write(folder / "one", npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (), }", "\x05"));
  EXPECT_EQ(data::load_npy(folder / "one").item<std::int64_t>(), 5);
}

TEST(LoadNpy, ReadsThreeBillionBytesWithoutHoldingThem) {
  const test::TemporaryFolder folder;
  write(folder / "big", npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000000,), }", ""));
  const auto header = std::filesystem::file_size(folder / "big");
  std::filesystem::resize_file(folder / "big", header + 3000000000);
  const at::Tensor array = data::load_npy(folder / "big");
  EXPECT_EQ(array.numel(), 3000000000);
  EXPECT_EQ(array[2999999999].item<std::int64_t>(), 0);
  std::filesystem::resize_file(folder / "big", header + 2999999999);
  const std::string text = message_of([&] { (void)data::load_npy(folder / "big"); }, ErrorCode::kCorruptData);
  EXPECT_NE(text.find("3000000000"), std::string::npos) << text;
  EXPECT_NE(text.find("2999999999"), std::string::npos) << text;
}

TEST(LoadNpy, KeepsTheFileAsItIsAndItsMapAlive) {
  const test::TemporaryFolder folder;
  const std::string file = npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2), }", "abcdefgh");
  write(folder / "x", file);
  at::Tensor row;
  at::Tensor batch;
  {
    const at::Tensor array = data::load_npy(folder / "x");
    array[0][0] = 90;  // its own copy of the page
    EXPECT_EQ(array[0][0].item<std::int64_t>(), 90);
    row = array[2];
    data::Loader loader(data::tensors(array), {.batch_size = 4, .workers = 1});
    for (auto& b : loader) batch = b;
    batch.fill_(1);
    EXPECT_EQ(array[3][1].item<std::int64_t>(), 'h');
  }
  EXPECT_EQ(row[0].item<std::int64_t>(), 'e');
  EXPECT_EQ(row[1].item<std::int64_t>(), 'f');
  EXPECT_EQ(files::read(folder / "x"), file);
  EXPECT_EQ(data::load_npy(folder / "x")[0][0].item<std::int64_t>(), 'a');
}

TEST(LoadNpy, NamesAFileThatIsMissing) {
  const test::TemporaryFolder folder;
  EXPECT_NE(message_of([&] { (void)data::load_npy(folder / "no.npy"); }, ErrorCode::kNotFound).find("no.npy"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten
