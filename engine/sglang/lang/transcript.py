"""What a program has said so far, as text and as messages. Backends make their prompts of it."""

from typing import Any

from sglang.lang.chat_template import ChatTemplate, Message


class Transcript:
    """Text, messages and images. One thread writes."""

    def __init__(self, chat_template: ChatTemplate) -> None:
        self.chat_template = chat_template
        self.text_ = ""
        self.messages_: list[Message] = []
        self.cur_role: str | None = None
        self.cur_role_begin_pos = 0
        self.images_: list[str] = []  # all that the text shows, as data URIs or URLs
        self.cur_images: list[str] = []  # those of the open turn
        self.fork_start_text_pos = 0

    def copy_to(self, other: "Transcript") -> None:
        """Makes `other` a copy that shares nothing."""
        other.text_ = str(self.text_)
        other.messages_ = list(self.messages_)
        other.cur_role = self.cur_role
        other.cur_role_begin_pos = self.cur_role_begin_pos
        other.images_ = list(self.images_)
        other.cur_images = list(self.cur_images)
        other.fork_start_text_pos = len(self.text_)

    def open_turn(self, role: str) -> None:
        if self.cur_role is not None:
            raise ValueError(
                f"the role {role!r} begins inside the role {self.cur_role!r}; end that one first"
            )
        default = self.chat_template.default_system_prompt
        if not self.messages_ and role != "system" and default:
            self.open_turn("system")
            self.text_ += default
            self.close_turn("system")
        self.text_ += self.chat_template.get_prefix_and_suffix(role, self.messages_)[0]
        self.cur_role = role
        self.cur_role_begin_pos = len(self.text_)

    def close_turn(self, role: str) -> None:
        if self.cur_role != role:
            raise ValueError(f"the role {role!r} ends, but the open role is {self.cur_role!r}")
        content = self.turn_text
        if role == "assistant":
            content = content.lstrip()
        self.text_ += self.chat_template.get_prefix_and_suffix(role, self.messages_)[1]
        self.messages_.append({"role": role, "content": self._with_images(content)})
        self.cur_role = None
        self.cur_images = []

    def show_image(self, data: str) -> None:
        self.text_ += self.chat_template.image_token
        self.images_.append(data)
        self.cur_images.append(data)

    @property
    def turn_text(self) -> str:
        """What was said since the open turn began."""
        return self.text_[self.cur_role_begin_pos :]

    def _with_images(self, content: str) -> Any:
        if not self.cur_images:
            return content
        text = content.replace(self.chat_template.image_token, "")
        images = [{"type": "image_url", "image_url": {"url": data}} for data in self.cur_images]
        return [{"type": "text", "text": text}, *images]
