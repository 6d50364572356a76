"""OSWorld's metrics and getters, repeated here: the fast path that needs neither OSWorld's checkout nor the network.

They agree with OSWorld's own, which run in the sidecar: a test runs both on the same cases. Five of these metrics and
three of these getters serve the bundled suites too; the others serve OSWorld's tasks only.
"""

from __future__ import annotations

#: metric → its options that take some of OSWorld's values only → those
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "compare_archive": {"file_type": ("text", "docx", "image", "csv")},  # not pdf, ppt, table, audio, video
}
#: module of ``metrics/`` → its functions, by OSWorld's names
METRICS: dict[str, tuple[str, ...]] = {
    "values": ("exact_match", "match_in_list", "is_in_list", "literal_match"),
    "text": (
        "check_include_exclude",
        "check_list",
        "compare_text_file",
        "compare_config",
        "compare_answer",
        "compare_csv",
        "check_csv",
        "diff_text_file",
        "file_contains",
        "fuzzy_match",
        "check_line_number",
        "compare_terminal_and_txt",
        "compare_python_pure_text",
        "is_extension_installed",
    ),
    "structured": (
        "check_json",
        "check_json_settings",
        "check_json_keybindings",
        "is_included_all_json_objects",
        "check_direct_json_object",
    ),
    "browser": (
        "is_expected_active_tab",
        "is_expected_active_tab_approximate",
        "is_expected_url_pattern_match",
        "is_expected_tabs",
        "is_expected_search_query",
        "is_expected_bookmarks",
        "is_expected_installed_extensions",
        "is_cookie_deleted",
        "check_history_deleted",
        "is_shortcut_on_desktop",
        "check_enabled_experiments",
        "check_font_size",
    ),
    "player": (
        "check_qt_bgcone",
        "check_qt_max_volume",
        "check_qt_minimal_view",
        "check_one_instance_when_started_from_file",
        "check_play_and_exit",
        "check_global_key_play_pause",
        "check_qt_slider_colours",
        "is_vlc_recordings_folder",
        "is_vlc_fullscreen",
        "is_vlc_playing",
    ),
    "pictures": (
        "compare_images",
        "compare_image_list",
        "check_structure_sim",
        "check_structure_sim_resized",
        "check_brightness_decrease_and_structure_sim",
        "check_saturation_increase_and_structure_sim",
        "check_contrast_increase_and_structure_sim",
        "check_image_size",
        "check_image_file_size",
    ),
    "documents": ("compare_docx_files", "compare_init_lines", "compare_docx_tables", "contains_page_break"),
    "settings": (
        "check_config_status",
        "find_default_font",
        "check_presenter_console_disable",
        "check_auto_saving_time",
        "check_libre_locale",
        "check_left_panel",
        "check_thunderbird_prefs",
        "check_thunderbird_filter",
        "check_gnome_favorite_apps",
        "is_utc_0",
        "check_text_enlarged",
        "check_moved_jpgs",
        "is_in_vm_clickboard",
    ),
    "archives": ("compare_archive", "compare_zip_files"),
}

#: module of ``getters/`` → its functions, by OSWorld's names
GETTERS: dict[str, tuple[str, ...]] = {
    "values": (
        "vm_file",
        "cloud_file",
        "cache_file",
        "content_from_vm_file",
        "vm_command_line",
        "vm_command_error",
        "vm_screen_size",
        "rule",
    ),
    "guest": ("accessibility_tree", "vm_terminal_output", "vm_window_size", "vm_wallpaper", "list_directory"),
    "programs": ("vlc_config", "vlc_playing_info", "gimp_config_file", "vscode_config", "default_video_player"),
    "chrome_profile": (
        "default_search_engine",
        "profile_name",
        "enable_do_not_track",
        "enable_safe_browsing",
        "enable_enhanced_safety_browsing",
        "new_startup_page",
        "data_delete_automacally",
        "chrome_font_size",
        "chrome_language",
        "enabled_experiments",
        "find_unpacked_extension_path",
        "find_installed_extension_name",
        "bookmarks",
        "cookie_data",
        "history",
        "shortcuts_on_desktop",
    ),
    "chrome_tabs": ("open_tabs_info", "active_url_from_accessTree", "active_tab_info", "active_tab_url_parse"),
}


def located(kind: str, modules: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Name → ``module:name`` of each function: a module is imported when a function of it is asked for.

    Args:
        kind: ``metrics`` or ``getters``, the folder of the modules.
        modules: :data:`METRICS` or :data:`GETTERS`.
    """
    return {name: f"{__name__}.{kind}.{module}:{name}" for module, names in modules.items() for name in names}
